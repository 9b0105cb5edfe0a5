"""Plays the transcript of the server's outside: command lines, HTTP, and the size limits of messages."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.command_lines import play_command_line, play_http
from tests.support.differences import Differences
from tests.support.server_process import Flavour, ServerProcess
from tests.support.transcript import Line, lines_of
from tests.support.ws_peer import TEXT, WsPeer

NAME = "08-cli-http.0.142.0"
ROOT = Path(__file__).resolve().parents[2]
LIMIT = re.compile(r"client message of (\d+) bytes, frame size (\d+): (.*)")


def differences_for(flavour: Flavour) -> Differences:
    """Return the table's entries for this transcript; none for the reference."""
    return Differences.none(NAME) if flavour.is_reference else Differences.of_ours(NAME)


def play_surface(flavour: Flavour) -> list[str]:
    """Play every command line and HTTP request; return what differs, and table entries nothing needed."""
    differences = differences_for(flavour)
    lines = lines_of(NAME)
    failures = []
    for line in lines:
        # There, ours would serve: tests/e2e/test_unix_listener.py.
        is_served = not differences.is_empty and "unix:///tmp/x" in line.other.get("cli", ())
        if line.kind == "cli" and not is_served:
            failures += play_command_line(line, flavour, differences)
    with ServerProcess(flavour, cwd=ROOT) as server:
        for line in lines:
            if line.kind == "http":
                failures += play_http(line, server.url, differences)
    return failures + differences.unused()


def play_limits(flavour: Flavour) -> list[str]:
    """Send messages just within and just beyond the size limits; return what differs."""
    failures = []
    with ServerProcess(flavour, cwd=ROOT) as server:
        for line in lines_of(NAME):
            found = LIMIT.fullmatch(line.note)
            if found:
                answered = '"id": 7' in found[3]
                peer = server.connect()
                failures += _send_large(peer, int(found[1]), int(found[2]), answered, line)
                peer.close()
    return failures


def _send_large(peer: WsPeer, size: int, frame_size: int, answered: bool, line: Line) -> list[str]:
    head, tail = b'{"id":7,"method":"no/such","params":"', b'"}'
    message = head + b"x" * (size - len(head) - len(tail)) + tail
    try:
        if frame_size >= size:
            peer.send_frame(TEXT, message)
        else:
            peer.send_fragments(message[i : i + frame_size] for i in range(0, size, frame_size))
        reply = peer.receive()
    except (BrokenPipeError, ConnectionResetError):
        reply = None
    if (reply is not None) != answered:
        return [f"{line.note}: got {reply}"]
    return []
