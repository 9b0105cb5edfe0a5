"""Plays recorded sessions of the reference's shell tool against a server, and compares.

A session is one file of `tests/transcripts/shell-tool`: `send` and `recv` in the order they were seen.  What
is sent is sent; for what was received, the message that corresponds is waited for: the response with the
same id, or the question with the same text.  Several sessions can be played on one server, because a
greeting may be repeated and a state replaced; ids of questions are translated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.peer import WAIT, PeerTimeout
from tests.support.source import ROOT
from tests.support.stdio_peer import StdioPeer

Json = Any
FOLDER = ROOT / "tests" / "transcripts" / "shell-tool"
SCRIPT = ROOT / "execserver" / "__main__.py"
BASH = "/bin/bash"
STOP_WAIT = 20.0

RULES = """
prefix_rule(["cat"])
prefix_rule(["touch"])
prefix_rule(["env"])
prefix_rule(["sleep"])
prefix_rule(["runme.sh"])
prefix_rule(["mkdir", ["one", "two"]])
prefix_rule(["mkdir", "ask"], decision="prompt")
prefix_rule(["true"], decision="prompt")
prefix_rule(["id", "-u"])
prefix_rule([["id", "seq", "factor"]], decision="forbidden")
"""
# What the recording's machine had besides, as far as the sessions show it.
OTHER_RULES: dict[str, dict[str, str]] = {
    "preserve-program-paths": {
        "a.rules": 'prefix_rule(["/usr/bin/id"], "forbidden")\nprefix_rule(["whoami"], "forbidden")\n'
    },
    "rules-none": {},
    "rules-other-extensions-ignored": {"x.rules.bak": "broken(", ".rules": "broken(", "y.txt": "broken("},
    "rules-several-files-strictest-wins": {
        "a.rules": 'prefix_rule(["seq", "2"], "forbidden")\n',
        "b.rules": 'prefix_rule(["seq"])\n',
    },
}
FLAGS: dict[str, tuple[str, ...]] = {"preserve-program-paths": ("--preserve-program-paths",)}


class Machine(NamedTuple):
    """The folders of one server: outside of /tmp, so that a policy that grants /tmp grants none of them."""

    root: Path

    def make(self, rules: Mapping[str, str]) -> None:
        """Make the folders that all sessions share."""
        for name in ("home", "outside", "tmp", "codex/rules", "server"):
            (self.root / name).mkdir(parents=True)
        (self.root / "home" / ".bash_profile").write_text('export FROM_PROFILE="yes"\n')
        for name, text in rules.items():
            (self.root / "codex" / "rules" / name).write_text(text)

    def workdir(self, name: str) -> Path:
        """Make the folder of one session, with the files the sessions use."""
        folder = self.root / "work" / name
        folder.mkdir(parents=True)
        (folder / "in").write_text("abc\n")
        (folder / "keep").write_text("")
        for program in ("runme.sh", "seq"):
            (folder / program).write_text('#!/bin/sh\necho ran "$@"\n')
            (folder / program).chmod(0o755)
        return folder

    def places(self, workdir: Path) -> dict[str, str]:
        """Return what the recorded names stand for here."""
        return {
            "<WORKDIR>": str(workdir),
            "<OUTSIDE>": str(self.root / "outside"),
            "<TMP>": str(self.root / "tmp"),
            "<ROOT>": str(self.root),
            "<HOME>": str(self.root / "home"),
            "<BASH>": BASH,
            "<LINUX_SANDBOX>": "/usr/bin/true",
        }


class Server:
    """The shell tool's server, from the source tree, in a process of its own; ended by `close`."""

    def __init__(
        self, machine: Machine, flags: tuple[str, ...] = (), variables: Mapping[str, str] | None = None
    ) -> None:
        env = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(machine.root / "home"),
            "CODEX_HOME": str(machine.root / "codex"),
            "TMPDIR": str(machine.root / "tmp"),
            "SERVER_ONLY": "kept",
            "CODEX_BASH_PATH": BASH,
            **(variables or {}),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(SCRIPT), "mcp", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd=machine.root / "server",
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.peer = StdioPeer(os.dup(self.process.stdin.fileno()), os.dup(self.process.stdout.fileno()))
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.stdin = self.process.stdout = None  # they are the peer's now

    def close(self) -> tuple[int, str]:
        """End the input; return the exit status and what is on stderr."""
        self.peer.close_input()
        assert self.process.stderr is not None
        try:
            _, errors = self.process.communicate(timeout=STOP_WAIT)
        finally:
            self.process.kill()
            self.peer.close()
        return self.process.returncode, errors.decode()


class Difference(NamedTuple):
    """What was recorded and what came, both without what differs from run to run."""

    recorded: Json
    seen: Json


class Replay:
    """One session on one server."""

    def __init__(self, name: str, peer: StdioPeer, places: Mapping[str, str]) -> None:
        self._steps = [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]
        self._peer = peer
        self._places = places
        self._pool: list[Json] = []
        self._questions: dict[int, int] = {}  # recorded id -> the one of this server

    def play(self) -> list[Difference]:
        """Play it to its end; return what differed."""
        differences = []
        for step in self._steps:
            message = step["msg"]
            if step["dir"] == "send":
                self._send(message)
                continue
            seen = self._take(message)
            recorded, seen = _plain(self._here(message)), _plain(seen)
            if recorded != seen:
                differences.append(Difference(recorded, seen))
        assert self._pool == []
        return differences

    def _send(self, message: Json) -> None:
        message = self._here(message)
        if "raw" in message:
            self._peer.send_text(message["raw"])
            return
        if "method" not in message:
            message["id"] = self._questions[message["id"]]
        self._peer.send(message)

    def _take(self, recorded: Json) -> Json:
        """Return the message that corresponds to a recorded one, waiting for it, however much else comes."""
        deadline = time.monotonic() + WAIT
        while True:
            for index, message in enumerate(self._pool):
                if self._corresponds(recorded, message):
                    if "method" in message:
                        self._questions[recorded["id"]] = message["id"]
                    return self._pool.pop(index)
            try:
                text = self._peer.receive_text(deadline - time.monotonic())
            except PeerTimeout:
                raise AssertionError(f"{recorded} did not come; these did: {self._pool}") from None
            assert text is not None, f"the output ended before {recorded}"
            self._pool.append(json.loads(text))

    def _corresponds(self, recorded: Json, message: Json) -> bool:
        if "cut" in recorded:
            return "result" in message
        if "method" in recorded:
            same = self._here(recorded["params"]["message"])
            return bool("method" in message and message["params"]["message"] == same)
        return "method" not in message and bool(message["id"] == recorded["id"])

    def _here(self, recorded: Json) -> Json:
        """Put this machine's paths in the place of the recorded names."""
        text = json.dumps(recorded)
        for name, path in self._places.items():
            text = text.replace(name, path)
        return json.loads(text)


def _plain(message: Json) -> Json:
    """Return a message without what no two runs share; the text of a result decoded."""
    if "cut" in message:
        return {"length": message["cut"] // 1024}
    message = json.loads(json.dumps(message))
    if "method" in message:
        del message["id"], message["params"]["_meta"]
        return message
    if "serverInfo" in message.get("result", {}):  # names the program, and one capability more
        del message["result"]["serverInfo"]
        message["result"]["capabilities"]["experimental"].pop("codex/sandbox-state-meta", None)
    message.get("error", {}).pop("data", None) if message.get("error", {}).get("code") == -32603 else None
    content = message.get("result", {}).get("content")
    if content:
        text = json.loads(content[0]["text"])
        if len(text["output"]) > 100_000:
            return {"length": len(json.dumps(message, separators=(",", ":"))) // 1024}
        assert set(text.pop("duration")) == {"secs", "nanos"}
        message["result"]["content"] = [text]
    return message
