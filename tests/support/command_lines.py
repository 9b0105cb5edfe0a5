"""Plays the parts of the recording that are no JSON messages: command lines, and HTTP requests as raw bytes.

`play_command_line` runs the server with recorded arguments and compares exit code, stdout and stderr.
`play_http` sends recorded bytes to the listening port and compares the answer, byte for byte but for the
date.
"""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

from tests.support.differences import Differences
from tests.support.server_process import Flavour, base_environment
from tests.support.transcript import Bindings, Line

RUN_WAIT = 60.0
QUIET = 0.05
"""How long an answer's connection is watched for an end that was not recorded."""
QUIET_START = 10.0
"""How long a server is given to log that it listens."""
TOO_HIGH = "70000"


def play_command_line(line: Line, flavour: Flavour, differences: Differences) -> list[str]:
    """Run the server as recorded; return what differs."""
    with ExitStack() as stack:
        bindings = Bindings({})
        recorded = line.other
        if "ws://127.0.0.1:{PORT}" in recorded["cli"]:
            taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            invalid = "invalid websocket" in recorded["stderr"]
            bindings.values["PORT"] = TOO_HIGH if invalid else str(taken.getsockname()[1])
        argv = [*flavour.argv, *bindings.fill(recorded["cli"][1:])]
        live = _run(argv, flavour, recorded)
    wanted = {name: recorded[name] for name in ("state", "rc", "stdout", "stderr")}
    if "RUST_LOG" in recorded["env"]:
        for outcome in (wanted, live):
            outcome["stderr"] = outcome["stderr"][outcome["stderr"].find("listening on ") :]
    faults = _compare(bindings, wanted, live, differences)
    if faults:
        ours = differences.reply(f"cli:{line.number}")
        if ours is not None:
            faults = _compare(bindings, {**wanted, **ours}, live, differences)
    return [f"line {line.number} {recorded['cli']}: {fault}" for fault in faults]


def _compare(
    bindings: Bindings, wanted: dict[str, Any], live: dict[str, Any], differences: Differences
) -> list[str]:
    """Compare one run. Of a dialogue over stdio only replies count; the reference may lose the last ones."""
    if not wanted["stdout"].startswith("{") and not live["stdout"].startswith("{"):
        return list(bindings.compare(wanted, live))
    left, right = _replies(wanted["stdout"]), _replies(live["stdout"])
    if differences.is_empty:
        shared = min(len(left), len(right))
        left, right = left[:shared], right[:shared]
    for recorded, reply in zip(left, right, strict=False):
        if "result" in reply:
            reply["result"] = differences.plain_result(reply["result"], recorded.get("result"))
    return list(bindings.compare({**wanted, "stdout": left}, {**live, "stdout": right}))


def _replies(text: str) -> list[Any]:
    return [message for message in map(json.loads, text.splitlines()) if "id" in message]


def _run(argv: list[str], flavour: Flavour, recorded: dict[str, Any]) -> dict[str, Any]:
    env = base_environment() | flavour.env | recorded["env"]
    with subprocess.Popen(
        argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        try:
            return _watch(child, recorded)
        finally:
            if child.poll() is None:
                child.kill()


def _watch(child: subprocess.Popen[bytes], recorded: dict[str, Any]) -> dict[str, Any]:
    assert child.stdout is not None
    first = b""
    if recorded["state"] == "still running, killed" or recorded["signal"] is not None:
        assert select.select([child.stdout], [], [], RUN_WAIT)[0], "nothing on stdout"
        first = child.stdout.readline()
        if recorded["signal"] is None:
            if recorded["stderr"] and child.stderr is not None:
                select.select([child.stderr], [], [], QUIET_START)
            running = child.poll() is None
            child.kill()
            out, err = child.communicate(timeout=RUN_WAIT)
            state = "still running, killed" if running else "exited"
            return {"state": state, "rc": None, "stdout": (first + out).decode(), "stderr": err.decode()}
        child.send_signal(signal.Signals(int(recorded["signal"])))
    out, err = child.communicate((recorded["stdin"] or "").encode(), timeout=RUN_WAIT)
    return {
        "state": "exited",
        "rc": child.returncode,
        "stdout": (first + out).decode(),
        "stderr": err.decode(),
    }


def play_http(line: Line, url: str, differences: Differences) -> list[str]:
    """Send the recorded request; return what differs in the answer."""
    parts = urlsplit(url)
    wanted = str(line.other["reply"])
    with socket.create_connection((parts.hostname, parts.port), RUN_WAIT) as sock:
        sock.sendall(str(line.other["http"]).replace("\n", "\r\n").encode())
        live = _answer(sock, wanted.endswith("<EOF>"))
    if Bindings({}).pattern(wanted).fullmatch(live):
        return []
    ours = differences.reply(f"http:{line.number}")
    if ours is not None and Bindings({}).pattern(ours["reply"]).fullmatch(live):
        return []
    return [f"line {line.number} {line.other['http']!r}: {live!r} instead of {wanted!r}"]


def _answer(sock: socket.socket, to_the_end: bool) -> str:
    data = b""
    deadline = time.monotonic() + RUN_WAIT
    while True:
        complete = _is_complete(data)
        left = QUIET if complete and not to_the_end else max(0.0, deadline - time.monotonic())
        if not select.select([sock], [], [], left)[0]:
            return data.decode("latin-1") + "<open>"
        try:
            piece = sock.recv(65_536)
        except ConnectionResetError:
            piece = b""
        if not piece:
            return data.decode("latin-1") + "<EOF>"
        data += piece


def _is_complete(data: bytes) -> bool:
    head, end, body = data.partition(b"\r\n\r\n")
    if not end:
        return False
    lengths = [field[16:] for field in head.lower().split(b"\r\n") if field.startswith(b"content-length: ")]
    return len(body) >= int(lengths[0]) if lengths else True
