"""Measures the shell tool beside a plain shell and the reference's, and prints a table.

    python3 build.py bench shell [--rounds N] [--programs N] [--json FILE]

Each row is one command: a loop of programs that run inside of the sandbox, the same for programs that a rule
lets run outside, and a command that starts nothing.  Rounds are interleaved, and the median counts.  The
reference (npm's `@openai/codex-shell-tool-mcp` and `@openai/codex`, 0.97.0) is looked for where the tests
install it; without it ours is measured alone, and not through the wrapper, which needs its patched Bash.
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

ROOT = Path(__file__).resolve().parents[1]
BASH = "/bin/bash"
RULES = 'prefix_rule(["true"])\n'
PROGRAMS = {"inside": "/bin/false", "outside": "/bin/true"}  # a rule lets the second run outside
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
    """A running shell tool; `call` returns the seconds that a command took, as a client sees it."""

    def __init__(self, contestant: Contestant, home: str) -> None:
        env = {**os.environ, "CODEX_HOME": home, "CODEX_BASH_PATH": contestant.bash, "PYTHONPATH": str(ROOT)}
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
        state = {"sandboxPolicy": {"type": "read-only"}, "sandboxCwd": "/"}
        self._request("codex/sandbox-state/update", {**state, "codexLinuxSandboxExe": contestant.helper})

    def call(self, command: str) -> float:
        """Run a command to its end."""
        arguments = {"command": command, "workdir": "/", "login": False, "timeout_ms": LIMIT_MS}
        started = time.monotonic()
        answer = self._request("tools/call", {"name": "shell", "arguments": arguments})
        seconds = time.monotonic() - started
        result = json.loads(answer["result"]["content"][0]["text"])
        if result["exit_code"] or result["output"]:
            raise SystemExit(f"bench: unexpected result: {result}")
        return seconds

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(20)

    def _request(self, method: str, params: object) -> Any:
        self._last += 1
        self._send({"id": self._last, "method": method, "params": params})
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

    def call(self, command: str) -> float:
        """Run a command to its end."""
        started = time.monotonic()
        subprocess.run([self._bash, "-c", command], stdin=subprocess.DEVNULL, check=True)
        return time.monotonic() - started


def rows(programs: int) -> dict[str, str]:
    """Return the commands by name."""
    loop = f"i=0; while [ $i -lt {programs} ]; do {{}}; i=$((i+1)); done; true"
    looped = {f"{programs} programs {name}": loop.format(path) for name, path in PROGRAMS.items()}
    return {**looped, "one call of `true`": "true"}


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
def running(contestant: Contestant, home: str) -> Iterator[Tool | PlainShell]:
    """Start a contestant, and end it."""
    if not contestant.command:
        yield PlainShell(contestant.bash)
        return
    tool = Tool(contestant, home)
    try:
        yield tool
    finally:
        tool.close()


def measure(
    those: Sequence[Contestant], commands: dict[str, str], rounds: int
) -> dict[str, dict[str, float]]:
    """Return the median of the seconds per row and contestant."""
    taken: dict[str, dict[str, list[float]]] = {row: {one.name: [] for one in those} for row in commands}
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        (Path(home) / "rules").mkdir()
        (Path(home) / "rules" / "default.rules").write_text(RULES)
        tools = [(one.name, stack.enter_context(running(one, home))) for one in those]
        for _, tool in tools:
            tool.call("true")
        for number in range(rounds):
            for row, command in commands.items():
                for name, tool in tools[:: 1 if number % 2 else -1]:
                    taken[row][name].append(tool.call(command))
    return {
        row: {name: statistics.median(figures) for name, figures in by_name.items()}
        for row, by_name in taken.items()
    }


def main(argv: list[str]) -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(prog="build.py bench shell")
    parser.add_argument("--ours", default=f"{sys.executable} -m execserver", help="how to start our program")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--json", help="where to write the figures")
    options = parser.parse_args(argv)
    those = contestants(options.ours)
    figures = measure(those, rows(options.programs), options.rounds)
    print("| ms |" + "".join(f" {one.name} |" for one in those))
    print("|---|" + "---|" * len(those))
    for row, by_name in figures.items():
        print(f"| {row} |" + "".join(f" {seconds * 1000:.1f} |" for seconds in by_name.values()))
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
