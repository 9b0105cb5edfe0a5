"""The one file where musl is the only C library, as in an image of Alpine.  Needs root for a root of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.machines import room
from tests.machines.conditions import without_libraries
from tests.machines.initramfs import Files, file, folder
from tests.machines.system import system, unpacked
from tests.support.musl import compiled
from tests.support.source import ROOT
from tools.debian import ARCHITECTURES
from tools.problems import Problem

PROGRAM = ROOT / "dist" / "execserver"
PROFILE = {
    "type": "managed",
    "network": "restricted",
    "file_system": {
        "type": "restricted",
        "entries": [
            {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"},
            {"path": {"type": "path", "path": "/root/inside"}, "access": "write"},
        ],
    },
}
SCRIPT = f"""
find / -xdev -name libc.so.6 | wc -l
sandboxed() {{
    execserver codex-linux-sandbox --sandbox-policy-cwd /root/inside \\
        --permission-profile '{json.dumps(PROFILE)}' -- "$@" 2>&1
}}
sandboxed muslprogram touch /root/inside/made
sandboxed muslprogram touch /root/outside/made
sandboxed muslprogram start muslprogram touch /root/inside/by-child
ls /root/inside /root/outside
execserver self-test | tail -n 1
"""


@pytest.fixture
def image(tmp_path: Path) -> Files:
    """A root with busybox, musl, a program that is linked with it, and the file."""
    machine = os.uname().machine
    if reason := room.why_not():
        pytest.skip(reason)
    if machine not in ARCHITECTURES:
        pytest.skip(f"Debian's packages for {machine} are not known here")
    if not PROGRAM.exists():
        pytest.skip("there is no dist/execserver: build it first")
    program = compiled(tmp_path)
    try:
        small, musl = without_libraries(system(machine)), unpacked("musl", machine)
    except Problem as problem:
        pytest.skip(problem.what)
    without_glibc = {name: entry for name, entry in small.items() if not name.startswith("opt/")}
    return {
        **without_glibc,
        **musl,
        "usr/local/bin/muslprogram": file(program.read_bytes(), 0o755),
        "usr/local/bin/execserver": file(PROGRAM.read_bytes(), 0o755),
        "root/inside": folder(),
        "root/outside": folder(),
    }


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_program_of_such_an_image_is_sandboxed(image: Files) -> None:
    outcome = room.run(image, SCRIPT)
    assert outcome.lines[:4] == ["0", "made", "refused: read-only", "made"]
    assert outcome.lines[4:6] == ["child: 0", "/root/inside:"]
    assert outcome.lines[6:9] == ["by-child", "made", ""]
    assert outcome.lines[9] == "/root/outside:"
    assert outcome.lines[10].startswith("OK"), outcome.lines[10:]
