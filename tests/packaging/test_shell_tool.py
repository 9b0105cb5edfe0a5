"""The shell tool out of the built files: its rules, its supervisor and its sandbox are all inside."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.one_file import Box
from tests.support.stdio_peer import StdioPeer

NAME = "codex-exec-mcp-server"
INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "t", "version": "0"},
}


@pytest.mark.unpacked
def test_the_shell_tool_asks_rules_inside_of_a_sandbox(box: Box, tmp_path: Path) -> None:
    link = tmp_path / NAME
    link.symlink_to(box.program)
    rules = tmp_path / "codex" / "rules"
    rules.mkdir(parents=True)
    (rules / "a.rules").write_text('prefix_rule(["true"], decision="forbidden")\n')
    (text,) = run(box, link, tmp_path, "/bin/true; echo $?; : > made; echo $?")
    lines = text.splitlines()
    assert lines[:2] == ["Execution denied: Execution forbidden by policy", "1"]
    assert lines[2].endswith((": made: Read-only file system", ": made: Permission denied"))
    assert lines[3:] == ["1"]
    assert not (tmp_path / "made").exists()


@pytest.mark.unpacked
def test_every_call_of_a_session_runs(box: Box, tmp_path: Path) -> None:
    """From the second one on, a waiting supervisor serves it."""
    link = tmp_path / NAME
    link.symlink_to(box.program)
    (tmp_path / "codex").mkdir()
    commands = [f"echo {number}" for number in range(4)]
    assert run(box, link, tmp_path, *commands) == [f"{number}\n" for number in range(4)]


def run(box: Box, program: Path, folder: Path, *commands: str) -> list[str]:
    """Run commands, one call after the other; return their outputs, of both streams through one pipe."""
    env = {**box.variables, "CODEX_HOME": str(folder / "codex"), "CODEX_BASH_PATH": "/bin/bash"}
    reading, typing = os.pipe()
    shown, writing = os.pipe()
    with subprocess.Popen(
        [program], stdin=reading, stdout=writing, stderr=subprocess.PIPE, env=env
    ) as server:
        os.close(reading)
        os.close(writing)
        peer = StdioPeer(typing, shown)
        peer.send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE})
        assert peer.receive() is not None
        peer.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        answers = []
        for number, command in enumerate(commands, start=2):
            arguments = {"command": f"exec 2>&1; {command}", "workdir": str(folder), "login": False}
            params = {"name": "shell", "arguments": arguments}
            peer.send({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
            answers.append(peer.receive())
        peer.close()
        assert server.communicate(timeout=30)[1] == b""
    return [json.loads(answer["result"]["content"][0]["text"])["output"] for answer in answers if answer]
