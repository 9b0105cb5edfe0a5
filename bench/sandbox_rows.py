"""Rows of sandboxed starts: one at a time, eight at once, and in workspaces that cost something.

The reference starts a program named `codex-linux-sandbox`, which it looks up in the request's own `PATH`: a
link to the measured program is there for it, and ours takes no notice of that.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

from bench.client import Gone, Json
from bench.rows import Row, Setting, median_s, unique_id

_MANY_FILES, _FILES_IN_A_FOLDER = 50_000, 500
_AT_ONCE = 8


def sandboxed_true(setting: Setting) -> float:
    """Start /bin/true in a sandbox that may write to its workspace, and wait until it is closed."""
    return _true_ms(setting)


def eight_at_once(setting: Setting) -> float:
    """Keep eight such starts under way."""
    total = setting.scaled(200, 40)
    _run(setting, 2 * _AT_ONCE)
    started = time.perf_counter()
    _run(setting, total)
    return total / (time.perf_counter() - started)


def many_files(setting: Setting) -> float:
    """Start it in a workspace with many files."""
    for number in range(0, _MANY_FILES, _FILES_IN_A_FOLDER):
        folder = setting.folder / f"folder-{number}"
        folder.mkdir()
        for name in range(_FILES_IN_A_FOLDER):
            (folder / f"file-{name}").touch()
    return _true_ms(setting)


def with_git(setting: Setting) -> float:
    """Start it in a workspace with a `.git`, to which it must not write."""
    subprocess.run(["git", "init", "--quiet", str(setting.folder)], check=True)
    return _true_ms(setting)


SANDBOX_ROWS = [
    Row("sb_true", "/bin/true in a sandbox, start to closed", "ms", False, sandboxed_true),
    Row("sb_eight", "the same, eight at once", "1/s", True, eight_at_once),
    Row("sb_files", "the same, 50,000 files in the workspace", "ms", False, many_files),
    Row("sb_git", "the same, a .git in the workspace", "ms", False, with_git),
]


def _true_ms(setting: Setting) -> float:
    _run(setting, 2)  # the first of a server looks what sandboxes the machine can have
    return median_s(lambda: _run(setting, 1), setting.scaled(60, 10)) * 1e3


def _run(setting: Setting, total: int) -> None:
    """Run so many, eight at once at most, each to its end."""
    started = ended = 0
    while ended < total:
        while started < total and started - ended < _AT_ONCE:
            _start(setting)
            started += 1
        message = setting.client.receive()
        if b'"process/exited"' in message[:64] and b'"exitCode":0' not in message:
            raise Gone(f"a sandboxed command failed: {message[:200]!r}")
        if b'"error"' in message[:64]:
            raise Gone(f"a sandboxed start was refused: {message[:200]!r}")
        ended += b'"process/closed"' in message[:64]


def _start(setting: Setting) -> None:
    workspace = setting.folder.as_uri()
    params = {
        "processId": unique_id(),
        "argv": ["/bin/true"],
        "cwd": workspace,
        "env": {"PATH": f"/usr/bin:/bin:{_helpers(setting)}"},
        "tty": False,
        "sandbox": _sandbox(workspace),
    }
    setting.client.send({"id": 0, "method": "process/start", "params": params})


def _helpers(setting: Setting) -> Path:
    folder = setting.folder / "helpers"
    if not folder.exists():
        folder.mkdir()
        (folder / "codex-linux-sandbox").symlink_to(setting.program)
    return folder


def _sandbox(workspace: str) -> Json:
    return {
        "permissions": WORKSPACE_WRITE,
        "cwd": workspace,
        "workspaceRoots": [workspace],
        "windowsSandboxLevel": "disabled",
    }


WORKSPACE_WRITE: dict[str, Any] = {
    "type": "managed",
    "network": "restricted",
    "file_system": {
        "type": "restricted",
        "entries": [
            {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"},
            {"path": {"type": "special", "value": {"kind": "project_roots"}}, "access": "write"},
        ],
    },
}
