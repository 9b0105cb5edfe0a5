"""Roots of their own on this kernel, and what is taken away in them.  Needs root."""

from __future__ import annotations

import os
import sys

import pytest

from tests.machines import matrix, room
from tests.machines.conditions import CONDITIONS, Condition, without_libraries
from tests.machines.initramfs import Files, file, folder, symlink
from tests.machines.report import CONDITION_CHECKS, USERS
from tests.machines.system import system
from tests.support.source import ROOT
from tools.problems import Problem

CONDITION_LIMIT_S = 600
# Shows that something is taken away: a script that succeeds then, and fails in a room as it is.
GONE = {
    "read-only /": "! touch /root/x",
    "/tmp and HOME may not be executed from": (
        "for each in /tmp /root /home/person; do cp /bin/busybox $each; ! $each/busybox true || exit 1; done"
    ),
    "no /dev/shm": "! [ -e /dev/shm ]",
    "no /sys": "! [ -e /sys ]",
    "no /proc/sys/user": "! [ -e /proc/sys/user/max_user_namespaces ]",
    "processes of others hidden (hidepid=2)": "! su -s /bin/sh person -c '[ -e /proc/1 ]'",
    "no C library but musl's or none": "! find /usr -name 'libc.so*' -o -name 'ld-*' | grep -q .",
}


@pytest.fixture(scope="module")
def small() -> Files:
    """A system with busybox and bash."""
    if reason := room.why_not():
        pytest.skip(f"no root can be made: {reason}")
    try:
        return system(os.uname().machine)
    except Problem as problem:
        pytest.skip(f"no system can be had: {problem.what}")


def test_a_script_runs_in_a_root_of_its_own(small: Files) -> None:
    script = "cat said; id -u; cut -d' ' -f2 /proc/mounts | grep ^/old; ls -d /old /[w-z]*; exit 3"
    outcome = room.run({**small, "root/said": file(b"hello\n")}, script)
    said = [line for line in outcome.lines if not line.startswith("ls: ")]
    assert (said, outcome.status) == (["hello", "0"], 3)


def test_what_would_harm_the_machine_is_not_among_its_rights(small: Files) -> None:
    outcome = room.run(small, "sed -n 's/^CapBnd:[[:space:]]*//p' /proc/self/status")
    rights = int(outcome.lines[0], 16)
    taken = {
        "module": 16,
        "rawio": 17,
        "pacct": 20,
        "boot": 22,
        "time": 25,
        "audit_control": 30,
        "syslog": 34,
    }
    assert [name for name, number in taken.items() if rights >> number & 1] == []
    assert rights >> 21 & 1  # sys_admin, else it could mount nothing


@pytest.mark.parametrize("condition", CONDITIONS[1:], ids=lambda condition: condition.name)
def test_a_condition_takes_away_what_its_name_says(condition: Condition, small: Files) -> None:
    test = GONE[condition.name]
    assert room.run(condition.change(small), condition.before + test).status == 0
    assert room.run(small, f"chown 1000 /home/person\n{test}").status != 0


def test_a_system_without_libraries_has_them_for_its_python_only() -> None:
    files = {
        "usr/lib64/ld-linux-x86-64.so.2": symlink("/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"),
        "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2": file(b"loader", 0o755),
        "usr/lib/x86_64-linux-gnu/libc.so.6": file(b"libc"),
        "usr/lib/python3.11/lib-dynload/termios.so": file(b"termios"),
        "usr/bin/bash": file(b"bash", 0o755),
        "usr/bin/busybox": file(b"busybox", 0o755),
        "home/person": folder(),
    }
    changed = without_libraries(files)
    assert {name for name in changed if name.startswith("usr/lib")} == {
        "usr/lib/python3.11/lib-dynload/termios.so"
    }
    assert changed["opt/python/ld-linux-x86-64.so.2"] == file(b"loader", 0o755)
    assert changed["opt/python/libc.so.6"] == file(b"libc")
    assert changed["usr/bin/bash"] == symlink("busybox")
    assert changed["usr/bin/python3"].data.startswith(b"#!/bin/sh\n")


@pytest.mark.long
@pytest.mark.timeout(CONDITION_LIMIT_S)
@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.name)
def test_the_file_works_under_each_condition(condition: Condition, small: Files) -> None:
    machine = os.uname().machine
    if not (ROOT / "dist" / f"execserver-{machine}").exists():
        pytest.skip("there is no file: python3 build.py build --all")
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the byte-code is for the Python in there, 3.11")
    found = matrix.try_condition(condition)
    assert found.failures == []
    assert {result for result, _ in found.checks.values()} == {"yes"}
    assert set(found.checks) == {(user, check) for user in USERS for check in CONDITION_CHECKS}
    assert found.sandboxes == {"root": "native", "person": "native"}
