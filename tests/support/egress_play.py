"""Plays the recorded traffic about network proxies against a server in the network of `egress_world`.

Several processes run side by side, so messages are compared for each process: its decisions and questions in
their order, its output joined, its end.  Ports, dates and versions are the machine's own.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.accounts import own_cache
from tests.support.egress_world import World
from tests.support.newest import environment_in, lines_of, make_files
from tests.support.peer import Json, PeerTimeout
from tests.support.server_process import Flavour, ServerProcess, base_environment
from tests.support.stdio_peer import StdioPeer

PROGRAM = Path(__file__).with_name("egress_program.py")
UDP_PROGRAM = Path(__file__).with_name("egress_udp.py")
_PLAIN = (
    (r"date: [^\r]* GMT", "date: DATE"),
    (r"Date: [^\r]* GMT", "Date: DATE"),
    (r"BaseHTTP/0\.6 Python/3[0-9.]*", "BaseHTTP"),
    (r"(127\.0\.0\.1|localhost|::1\]):[0-9]{2,5}", r"\1:PORT"),
    (r"(localhost|localhost\.|localhost'), [0-9]{4,5}", r"\1, PORT"),
    (r"laddr=\('93\.184\.216\.34', [0-9]+\)", "laddr"),
    (r"fd=[0-9]+", "fd"),
    (r"content-length: [0-9]+", "content-length"),
    (r"(reply 050000015db8d822)[0-9a-f]{4}", r"\1"),
    (r"\nthread 'main' \([0-9]+\).*\n", ""),
    (r"codex-linux-sandbox: (failed to prepare)", r"\1"),
    (r"note: run with `RUST_BACKTRACE=1`.*\n", ""),
    (r"x-unix-socket: .*/u\.sock", "x-unix-socket: u.sock"),
)


class Story:
    """What is known of one process."""

    def __init__(self) -> None:
        self.decisions: list[Json] = []
        self.questions: list[Json] = []
        self.output = ""
        self.end: Json = None
        self.closed = False

    def take(self, message: Json) -> None:
        """Note a message about the process."""
        params, method = message["params"], message["method"]
        if method == "process/output":
            self.output += base64.b64decode(params["chunk"]).decode("latin-1")
        elif method == "process/exited":
            self.end = (params["exitCode"], params["sandboxDenied"])
        elif method == "process/closed":
            self.closed = True
        elif method == "network/policyDecision":
            self.decisions.append(_decision(params))
        elif method == "network/policyRequest":
            self.questions.append((message["id"], params["request"]))

    def differences(self, other: Story) -> list[str]:
        """Return how a live process differs from a recorded one."""
        found = [
            f"{name}:\n {getattr(other, name)}\ninstead of\n {getattr(self, name)}"
            for name in ("decisions", "questions", "end")
            if getattr(self, name) != getattr(other, name)
        ]
        if plain(self.output) != plain(other.output):
            found.append(f"output:\n{plain(other.output)}\ninstead of\n{plain(self.output)}")
        return found


def plain(text: str) -> str:
    """Return output without what differs from run to run."""
    for pattern, other in _PLAIN:
        text = re.sub(pattern, other, text)
    return text


def _decision(params: Json) -> Json:
    fixed = {
        name: value for name, value in params.items() if name not in ("timestamp", "client", "processId")
    }
    return list(fixed.items())


class Player:
    """Sends what the client sent once everything before it has come."""

    def __init__(self, peer: StdioPeer) -> None:
        self._peer = peer
        self.replies: dict[Json, Json] = {}
        self.stories: dict[str, Story] = defaultdict(Story)
        self.ended = False

    def play(self, lines: list[dict[str, Any]]) -> list[str]:
        """Play the lines; return the differences."""
        wanted: dict[str, Story] = defaultdict(Story)
        replies: dict[Json, Json] = {}
        for line in lines:
            message = line["msg"]
            if line["dir"] == "#":
                continue
            if line["dir"] == ">":
                self._wait(replies, wanted)
                if not self.ended:
                    self._peer.send(message)
            elif "method" in message:
                wanted[message["params"]["processId"]].take(message)
            else:
                replies[message["id"]] = message
        self._wait(replies, wanted)
        return self._compare(replies, wanted)

    def _wait(self, replies: dict[Json, Json], wanted: dict[str, Story]) -> None:
        while not self.ended and not self._has(replies, wanted):
            try:
                message = self._peer.receive()
            except PeerTimeout:
                message = None  # what has not come will not: to wait again for all that follows takes minutes
            if message is None:
                self.ended = True
            elif "method" in message:
                self.stories[message["params"]["processId"]].take(message)
            else:
                self.replies[message["id"]] = message

    def _has(self, replies: dict[Json, Json], wanted: dict[str, Story]) -> bool:
        if not replies.keys() <= self.replies.keys():
            return False
        for name, story in wanted.items():
            live = self.stories[name]
            if len(live.questions) < len(story.questions) or (story.closed and not live.closed):
                return False
        return True

    def _compare(self, replies: dict[Json, Json], wanted: dict[str, Story]) -> list[str]:
        failures = []
        for number, message in replies.items():
            live = self.replies.get(number)
            if "sessionId" not in message.get("result", {}) and _told(live) != _told(message):
                failures.append(f"answer {number}: {live} instead of {message}")
        for name in wanted.keys() | self.stories.keys():
            failures += [f"{name} {text}" for text in wanted[name].differences(self.stories[name])]
        return failures


def _told(message: Json) -> Json:
    """Return an answer without the place of a refused value, which ours adds."""
    if message is None or "error" not in message:
        return message
    error = message["error"]
    text = re.sub(r" \(in `[^`]+`\)$", "", error["message"]).replace("integer `1`", "number")
    return {"id": message["id"], "error": {"code": error["code"], "message": text}}


def play_egress(name: str, root: Path, world: World, flavour: Flavour) -> list[str]:
    """Replay a transcript; return what differed."""
    lines = lines_of(name, root)
    text = json.dumps(lines[1:]).replace(":PORT", ":8080")
    make_files(root, {})
    shutil.copy(PROGRAM, root / "nc.py")
    shutil.copy(UDP_PROGRAM, root / "udp.py")
    variables = {"EXECSERVER_SETTINGS": '{"policy_answer_grace_s": 0.5}'}
    variables |= {key: value.replace("PORT", "8080") for key, value in lines[0]["msg"].get("env", {}).items()}
    # An ordinary user is root in `world`: what is usual for root outside may be root's there, and closed.
    (root / "run").mkdir()
    variables["XDG_RUNTIME_DIR"] = str(root / "run")
    argv = (*world.command, *flavour.argv)
    started = replace(flavour, argv=argv, env=environment_in(root) | variables)
    base = {key: value for key, value in base_environment().items() if key != "TMPDIR"} | own_cache()
    with ServerProcess(started, listen="stdio", env=base, cwd=root / "cwd") as server:
        with server.stdio() as peer:
            assert isinstance(peer, StdioPeer)
            failures = Player(peer).play(json.loads(text))
        server.close_stdin()
        server.wait()
    return failures
