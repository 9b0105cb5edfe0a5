"""The reference (0.97.0) on our corpora: what it says about rules files, and what it asks about."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from execserver.mcp.rules_files import RulesError, load_rules
from tests.mcp.snippets import Snippet, shown_alike, snippets
from tests.reference.install import ReferenceMissing, ShellTool, shell_tool
from tests.rules.commands import ASKED, ASKED_HERE_ONLY, NOT_ASKED

PROGRAMS = ("git", "mygit", "rm", "sudo", "bash", "sh", "zsh", "dash")
LIMIT_S = 30


@pytest.fixture(scope="module")
def tool() -> ShellTool:
    """The programs of the reference."""
    try:
        return shell_tool()
    except ReferenceMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("snippet", snippets())
def test_the_reference_says_the_same_about_a_rules_file(
    snippet: Snippet, tool: ShellTool, tmp_path: Path
) -> None:
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "a.rules").write_text(snippet.source)
    done = subprocess.run(
        [tool.server, "--bash", tool.bash],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "CODEX_HOME": str(tmp_path)},
        timeout=LIMIT_S,
        check=False,
    )
    if snippet.message is None:
        assert "connection closed: initialized request" in done.stderr
        return
    with pytest.raises(RulesError) as caught:
        load_rules([str(folder)])
    theirs = done.stderr.partition("\n\n\nCaused by")[0].rstrip()
    assert shown_alike(theirs) == shown_alike(f"Error: {caught.value}")


@pytest.fixture
def asking(tool: ShellTool, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A server of the reference without rules, initialized, in a folder with harmless programs."""
    (tmp_path / "bin").mkdir()
    for name in PROGRAMS:
        program = tmp_path / "bin" / name
        program.write_text("#!/bin/true\n")
        program.chmod(0o755)
    with subprocess.Popen(
        [tool.server, "--bash", tool.bash, "--execve", tool.wrapper],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={"PATH": os.environ["PATH"], "CODEX_HOME": str(tmp_path)},
        cwd=tmp_path,
    ) as server:
        greeting = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "0"},
        }
        send(server, id=1, method="initialize", params=greeting)
        send(server, method="notifications/initialized")
        policy = {"sandboxPolicy": {"type": "danger-full-access"}, "sandboxCwd": str(tmp_path)}
        send(server, id=2, method="codex/sandbox-state/update", params=policy)
        assert [receive(server)["id"] for _ in range(2)] == [1, 2]
        yield server
        assert server.stdin is not None
        server.stdin.close()


def send(server: subprocess.Popen[str], **message: object) -> None:
    assert server.stdin is not None
    server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    server.stdin.flush()


def receive(server: subprocess.Popen[str]) -> dict[str, object]:
    assert server.stdout is not None
    message: dict[str, object] = json.loads(server.stdout.readline())
    return message


def asked_about(server: subprocess.Popen[str], folder: Path, commands: Sequence[str]) -> list[str]:
    """Run commands, decline every question, and return those that one was asked about."""
    found = []
    for command in commands:
        arguments = {"command": f"PATH={folder}/bin; {command}", "workdir": str(folder), "login": False}
        send(server, id=3, method="tools/call", params={"name": "shell", "arguments": arguments})
        message = receive(server)
        if message.get("method") == "elicitation/create":
            found.append(command)
            send(server, id=message["id"], result={"action": "decline"})
            message = receive(server)
        assert message["id"] == 3, message
    return found


def test_the_reference_asks_about_the_same_commands(asking: subprocess.Popen[str], tmp_path: Path) -> None:
    assert asked_about(asking, tmp_path, ASKED) == list(ASKED)
    assert asked_about(asking, tmp_path, [*NOT_ASKED, *ASKED_HERE_ONLY]) == []
