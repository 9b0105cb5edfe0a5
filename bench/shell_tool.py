"""Measures the shell tool beside a plain shell and the reference's, and prints a table.

    python3 build.py bench shell [--rounds N] [--programs N] [--sources N] [--only WORD] [--json FILE]

Each row is a command, or several at once.  Rounds are interleaved, and the median counts.  The reference
(npm's `@openai/codex-shell-tool-mcp` and `@openai/codex`, 0.97.0) is looked for where the tests install it;
without it ours is measured alone, and not through the wrapper, which needs its patched Bash.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.shell_rows import RULES, rows

ROOT = Path(__file__).resolve().parents[1]
BASH = "/bin/bash"
OURS = (sys.executable, "-m", "execserver")
LIMIT_MS = 120_000
# A filter that refuses ptrace, as in containers: ours falls back to the wrapper.
REFUSING = (sys.executable, "-m", "tests.support.without_ptrace")


class Contestant(NamedTuple):
    """One shell tool: its command (empty: no tool, a plain shell) and its Bash."""

    name: str
    command: Sequence[str]
    bash: str
    helper: str = "/usr/bin/true"


class Tool:
    """A running shell tool; `call` returns the seconds that a command took, as a client sees it.

    Commands may write below `folder`.
    """

    def __init__(self, contestant: Contestant, home: str, folder: str) -> None:
        own = {"CODEX_HOME": home, "CODEX_BASH_PATH": contestant.bash, "PYTHONPATH": str(ROOT)}
        # Without SHLVL the reference's Bash reads ~/.bashrc at each call.
        env = {"SHLVL": "1", **os.environ, **own}
        self._process = subprocess.Popen(
            contestant.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            cwd=ROOT,
        )
        self._last = 0
        self._request(
            "initialize",
            {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "b", "version": "1"},
            },
        )
        self._send({"method": "notifications/initialized"})
        state = {"sandboxPolicy": {"type": "workspace-write"}, "sandboxCwd": folder}
        self._request("codex/sandbox-state/update", {**state, "codexLinuxSandboxExe": contestant.helper})

    def call(self, command: str, at_once: int = 1) -> float:
        """Run a command to its end, several times at once."""
        arguments = {"command": command, "workdir": "/", "login": False, "timeout_ms": LIMIT_MS}
        started = time.monotonic()
        for _ in range(at_once):
            self._ask("tools/call", {"name": "shell", "arguments": arguments})
        answers = [self._answer("tools/call") for _ in range(at_once)]
        seconds = time.monotonic() - started
        for answer in answers:
            result = json.loads(answer["result"]["content"][0]["text"])
            if result["exit_code"]:  # what a profile complains about is not the tool's
                raise SystemExit(f"bench: unexpected result: {result}")
        return seconds

    @property
    def pid(self) -> int:
        """The process of the shell tool."""
        return self._process.pid

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(20)

    def _request(self, method: str, params: object) -> None:
        self._ask(method, params)
        self._answer(method)

    def _ask(self, method: str, params: object) -> None:
        self._last += 1
        self._send({"id": self._last, "method": method, "params": params})

    def _answer(self, method: str) -> Any:
        assert self._process.stdout is not None
        answer = json.loads(self._process.stdout.readline())
        if "result" not in answer:
            raise SystemExit(f"bench: {method} was refused: {answer}")
        return answer

    def _send(self, message: dict[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._process.stdin.flush()


class PlainShell:
    """The same commands in a shell alone."""

    def __init__(self, bash: str) -> None:
        self._bash = bash

    def call(self, command: str, at_once: int = 1) -> float:
        """Run a command to its end, several times at once."""
        argv = [self._bash, "-c", command]
        started = time.monotonic()
        shells = [subprocess.Popen(argv, stdin=subprocess.DEVNULL) for _ in range(at_once)]
        statuses = [shell.wait() for shell in shells]
        if any(statuses):
            raise SystemExit(f"bench: {command} failed")
        return time.monotonic() - started


def contestants(ours: str) -> list[Contestant]:
    """Return who is measured."""
    from tests.reference.install import ReferenceMissing, shell_tool

    own = (*shlex.split(ours), "mcp")
    found = [Contestant("plain shell", (), BASH), Contestant("ours", own, BASH)]
    try:
        tool = shell_tool()
    except ReferenceMissing as missing:
        print(f"bench: measuring ours alone: {missing}", file=sys.stderr)
        return found
    bash, helper = str(tool.bash), str(tool.helper)
    return [
        *found,
        Contestant("ours, wrapper", (*REFUSING, *own), bash),
        Contestant("reference", (str(tool.server),), bash, helper),
    ]


@contextmanager
def running(contestant: Contestant, home: str, folder: str) -> Iterator[Tool | PlainShell]:
    """Start a contestant, and end it."""
    if not contestant.command:
        yield PlainShell(contestant.bash)
        return
    tool = Tool(contestant, home, folder)
    try:
        yield tool
    finally:
        tool.close()


def measure(those: Sequence[Contestant], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the median of the seconds per row and contestant."""
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        (Path(home) / "rules").mkdir()
        (Path(home) / "rules" / "default.rules").write_text(RULES)
        wanted = [
            row for row in rows(options.programs, options.sources, Path(folder)) if options.only in row.name
        ]
        taken: dict[str, dict[str, list[float]]] = {
            row.name: {one.name: [] for one in those} for row in wanted
        }
        tools = [(one.name, stack.enter_context(running(one, home, folder))) for one in those]
        for _, tool in tools:
            tool.call("true")
        for number in range(options.rounds):
            for row in wanted:
                for name, tool in tools[:: 1 if number % 2 else -1]:
                    taken[row.name][name].append(tool.call(row.command, row.at_once))
    return {
        row: {name: statistics.median(figures) for name, figures in by_name.items()}
        for row, by_name in taken.items()
    }


def main(argv: list[str]) -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(prog="build.py bench shell")
    parser.add_argument("--ours", default=shlex.join(OURS), help="how to start our program")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--sources", type=int, default=300, help="how many C files are compiled")
    parser.add_argument("--only", default="", help="the rows whose name holds this")
    parser.add_argument("--json", help="where to write the figures")
    options = parser.parse_args(argv)
    those = contestants(options.ours)
    figures = measure(those, options)
    print("| ms |" + "".join(f" {one.name} |" for one in those))
    print("|---|" + "---|" * len(those))
    for row, by_name in figures.items():
        print(f"| {row} |" + "".join(f" {seconds * 1000:.1f} |" for seconds in by_name.values()))
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
