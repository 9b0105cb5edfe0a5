"""Plays the recorded traffic of the newest reference server, `tests/transcripts/newest`, against a server.

A line is a message of the client (`>`), one of the server (`<`), or a remark (`#`): the files to make, or
what the recorder did in between.  Each conversation is a dialogue over stdio, so every message of the server
must come in its recorded place.  Only the answer to `initialize` is not compared: it describes a machine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.accounts import own_cache
from tests.support.peer import Json
from tests.support.server_process import Flavour, ServerProcess, base_environment
from tests.support.stdio_peer import StdioPeer
from tests.support.transcript import FOLDER

NEWEST = FOLDER / "newest"
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
# Ours names the place of a refused value behind the recorded text.
PLACE = re.compile(r" \(in `[^`]+`\)$")

Act = Callable[[Path], object]


@dataclass
class Course:
    """What a transcript does not hold: what its notes mean, what else is there, requests too long to keep."""

    notes: dict[str, Act] = field(default_factory=dict)
    before: Act | None = None
    requests: dict[int, Json] = field(default_factory=dict)
    # Where ours differs, by request id: requests with a path that is no URI, which it takes; its own texts.
    native_paths: frozenset[int] = frozenset()
    texts: dict[int, str] = field(default_factory=dict)
    acts: dict[int, Act] = field(default_factory=dict)  # before a request, where no note tells of it


def play_newest(name: str, root: Path, flavour: Flavour, course: Course) -> list[str]:
    """Replay a transcript in a folder; return what differed."""
    lines = lines_of(name, root)
    remarks = lines[0]["msg"]
    make_files(root, remarks["files"])
    if course.before is not None:
        course.before(root)
    command = with_files_in_etc(root, remarks["etc"]) if "etc" in remarks else ()
    started = replace(flavour, argv=(*command, *flavour.argv), env=environment_in(root))
    base = {name: value for name, value in base_environment().items() if name != "TMPDIR"} | own_cache()
    with ServerProcess(started, listen="stdio", env=base, cwd=root / "cwd") as server:
        with server.stdio() as peer:
            assert isinstance(peer, StdioPeer)
            failures = _Player(peer, flavour, root, course).play(lines[1:])
        server.close_stdin()
        server.wait()
    return failures


def lines_of(name: str, root: Path) -> list[dict[str, Any]]:
    """Return the lines of a transcript, with this run's folder and host name in it."""
    text = (NEWEST / f"{name}.jsonl").read_text(encoding="utf-8").replace("/ROOT", str(root))
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    return lines


def environment_in(root: Path) -> dict[str, str]:
    """Return the variables that the recorded server had."""
    home = root / "home"
    return {"HOME": str(home), "CODEX_HOME": str(home / ".codex"), "PATH": SEARCH_PATH}


def with_files_in_etc(root: Path, files: dict[str, str]) -> tuple[str, ...]:
    """Return the beginning of a command line that runs a program with an /etc of its own."""
    namespace = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--map-root-user", "--mount")
    etc = root / "etc"
    for name, text in files.items():
        (etc / name).parent.mkdir(parents=True, exist_ok=True)
        (etc / name).write_text(text, encoding="utf-8")
    for name in ("passwd", "group"):
        shutil.copy(f"/etc/{name}", etc)
    script = f'mount -t tmpfs none /etc && cp -R {shlex.quote(str(etc))}/. /etc/ && exec "$@"'
    command = (*namespace, "sh", "-c", script, "sh")
    if subprocess.run([*command, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("no namespace with an /etc of its own can be made here")
    return command


def make_files(root: Path, files: dict[str, str]) -> None:
    """Make the files of a transcript; `-> x` is a symlink, text in brackets says what is too long to keep."""
    for folder in ("cwd", "ws", "home/.codex"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content.startswith("-> "):
            path.symlink_to(content.removeprefix("-> "))
        elif content == "(1048577 bytes of x)":
            path.write_bytes(b"x" * 1_048_577)
        elif content == "(bytes ff fe)":
            path.write_bytes(b"\xff\xfe")
        else:
            path.write_text(content, encoding="utf-8")


class _Player:
    def __init__(self, peer: StdioPeer, flavour: Flavour, root: Path, course: Course) -> None:
        self._peer = peer
        self._native_paths = frozenset() if flavour.is_reference else course.native_paths
        self._texts = {} if flavour.is_reference else course.texts
        self._root = root
        self._course = course
        self._initializing: set[Json] = set()

    def play(self, lines: list[dict[str, Any]]) -> list[str]:
        failures = []
        for number, line in enumerate(lines, 2):
            message = line["msg"]
            if line["dir"] == "#":
                self._course.notes[message["note"]](self._root)
            elif line["dir"] == ">":
                if message["method"] == "initialize":
                    self._initializing.add(message["id"])
                act = self._course.acts.get(message.get("id", 0))
                if act is not None:
                    act(self._root)
                self._peer.send(message)
            else:
                failures += [f"line {number}: {text}" for text in self._expect(message)]
        return failures

    def _expect(self, wanted: dict[str, Json]) -> list[str]:
        asked = self._course.requests.get(wanted.get("id", 0))
        if asked is not None:
            self._peer.send(asked)
        got = self._peer.receive()
        if got is None:
            return [f"the server ended instead of {str(wanted)[:200]}"]
        if wanted.get("id") in self._initializing and "sessionId" in got.get("result", {}):
            self._initializing.discard(wanted["id"])
            return []
        if wanted.get("id") in self._native_paths:
            return [] if "result" in got else [f"a native path was refused: {got}"]
        if wanted.get("id") in self._texts:
            text = self._texts[wanted["id"]].replace("/ROOT", str(self._root))
            return [] if got.get("error", {}).get("message") == text else [f"not the text of ours: {got}"]
        wanted, got = _plain(wanted), _plain(got)
        return [] if wanted == got else [f"\n{json.dumps(got)}\n instead of\n{json.dumps(wanted)}"]


def _plain(message: dict[str, Json]) -> dict[str, Json]:
    """Return a message without what may differ: the host name, and where a refused value was."""
    if "error" in message:
        error = message["error"]
        message = {**message, "error": {**error, "message": PLACE.sub("", error["message"])}}
        message["error"].pop("data", None)
    if isinstance(message.get("result"), dict) and "modifiedAtMs" in message["result"]:
        timeless = {name: value for name, value in message["result"].items() if not name.endswith("AtMs")}
        message = {**message, "result": timeless}
    if isinstance(message.get("result"), dict) and message["result"].get("hostname") == socket.gethostname():
        message = {**message, "result": {**message["result"], "hostname": "HOST"}}
    return message
