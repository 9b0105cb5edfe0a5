"""The lives that end in a server, each from birth to end: connections, sessions, processes, requests, files.

A life is a function of a `Scene` and a number that is new each time.  It returns when its client knows that
all is over; what it made is gone from its side then.
"""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable
from pathlib import Path
from typing import cast

from execserver.services.running.stdin_queue import QUEUED_WRITES
from tests.support.http_fixture import HttpFixture, refused_port
from tests.support.peer import Json, RemoteError
from tests.support.running import event, outcome, read, run, start, terminate, write
from tests.support.sandboxes import read_only, workspace_write
from tests.support.server_process import ServerProcess
from tests.support.ws_peer import CONTINUATION, TEXT, WsPeer

Life = Callable[["Scene", int], object]

# What the lives need of a server: processes and sessions that are forgotten soon.
SETTINGS: dict[str, object] = {
    "closed_process_retention_s": 0.05,
    "detached_session_ttl_s": 0.05,
    # What is left of a life is asked here, not how fast it begins: a start that hangs fails all the same.
    "spawn_timeout_s": 20.0,
}
_LARGE = 3_000_000  # above what a result in one piece may hold


class Scene:
    """A server, one connection that lasts, a web server, and a folder with files."""

    def __init__(self, server: ServerProcess, web: HttpFixture, folder: Path) -> None:
        self.server = server
        self.web = web
        self.folder = folder
        self.file = folder / "file"
        self.large = folder / "large"
        self.refused = f"http://127.0.0.1:{refused_port()}/"
        self.peer = server.connect()
        self.file.write_bytes(b"x" * 10_000)
        self.large.write_bytes(b"x" * _LARGE)
        self.peer.open_session()
        self.peer.call("environment/sandbox", {})  # it has looked at its machine then

    def refusal(self, method: str, params: Json) -> RemoteError:
        """Ask for what is refused."""
        try:
            self.peer.call(method, params)
        except RemoteError as error:
            return error
        raise AssertionError(f"{method} was not refused")

    def visitor(self) -> WsPeer:
        """Return a further connection, with a session of its own."""
        peer = self.server.connect()
        peer.open_session()
        return peer

    def get(self, number: int, path: str, **members: Json) -> Json:
        """Return the params of an HTTP request."""
        url = path if "://" in path else f"http://127.0.0.1:{self.web.port}{path}"
        return {"method": "GET", "url": url, "requestId": f"r{number}", **members}


def a_request(scene: Scene, _: int) -> None:
    scene.peer.call("environment/info", {})


def a_refused_request(scene: Scene, _: int) -> None:
    scene.refusal("no/such", {})
    scene.refusal("process/read", {"processId": 1})
    scene.refusal("fs/open", {"path": "file://relative", "handleId": "h"})
    scene.refusal("initialize", {"clientName": "twice"})


def a_malformed_message(scene: Scene, _: int) -> None:
    scene.peer.send_text("{no json")
    scene.peer.take({"id": -1})


# --- processes -------------------------------------------------------------------------------------------


def a_process_with_pipes(scene: Scene, number: int) -> None:
    start(scene.peer, f"p{number}", ["cat"], pipeStdin=True)
    write(scene.peer, f"p{number}", b"typed\n", "w")
    scene.peer.call("process/closeStdin", {"processId": f"p{number}"})
    assert outcome(scene.peer, f"p{number}").stdout == b"typed\n"


def a_process_with_a_terminal(scene: Scene, number: int) -> None:
    assert run(scene.peer, f"p{number}", "echo seen; sleep 0.01", tty=True).pty == b"seen\r\n"


def a_sandboxed_process(scene: Scene, number: int) -> None:
    sandbox = workspace_write(scene.folder)
    run(scene.peer, f"p{number}", "echo seen; false", sandbox=sandbox, cwd=f"file://{scene.folder}")


def a_killed_process(scene: Scene, number: int) -> None:
    start(scene.peer, f"p{number}", ["sleep", "100"], pipeStdin=True)
    assert terminate(scene.peer, f"p{number}")
    outcome(scene.peer, f"p{number}")


def a_killed_process_with_a_terminal(scene: Scene, number: int) -> None:
    start(scene.peer, f"p{number}", ["sleep", "100"], tty=True)
    assert terminate(scene.peer, f"p{number}")
    outcome(scene.peer, f"p{number}")


def a_process_that_leaves_its_outputs_open(scene: Scene, number: int) -> None:
    peer = scene.visitor()
    start(peer, "p", "sleep 100 & echo $!", pipeStdin=True)
    while event(peer, "p")["method"] != "process/exited":
        pass
    peer.close()


def a_failed_start(scene: Scene, number: int) -> None:
    params = {"processId": f"p{number}", "cwd": "/", "env": {}, "tty": False}
    scene.refusal("process/start", {**params, "argv": ["/no/such"]})
    scene.refusal("process/start", {**params, "argv": ["sh"], "cwd": "/no/such"})


def a_failed_start_in_a_sandbox(scene: Scene, number: int) -> None:
    sandbox = workspace_write(scene.folder)
    assert run(
        scene.peer, f"p{number}", ["/no/such"], sandbox=sandbox, cwd=f"file://{scene.folder}"
    ).exit_code


def a_read_that_waited(scene: Scene, number: int) -> None:
    start(scene.peer, f"p{number}", ["cat"], pipeStdin=True)
    assert not read(scene.peer, f"p{number}", waitMs=1)["chunks"]
    scene.peer.send({"id": "waits", "method": "process/read", "params": waiting(number)})
    write(scene.peer, f"p{number}", b"now", "w")
    scene.peer.take({"id": "waits"})
    assert terminate(scene.peer, f"p{number}")
    outcome(scene.peer, f"p{number}")


def writes_that_nobody_reads(scene: Scene, number: int) -> None:
    start(scene.peer, f"p{number}", ["sleep", "100"], pipeStdin=True)
    chunk = base64.b64encode(b"x" * 100_000).decode()  # more than the pipe takes
    for turn in range(QUEUED_WRITES + 1):
        params = {"processId": f"p{number}", "chunk": chunk, "writeId": f"w{turn}"}
        scene.peer.send({"id": f"write {turn}", "method": "process/write", "params": params})
        chunk = "eA=="
    scene.peer.take({"id": f"write {QUEUED_WRITES - 1}"})
    assert terminate(scene.peer, f"p{number}")
    for turn in set(range(QUEUED_WRITES + 1)) - {QUEUED_WRITES - 1}:
        scene.peer.take({"id": f"write {turn}"})
    outcome(scene.peer, f"p{number}")


def waiting(number: int) -> Json:
    """Return the params of a read that waits for long."""
    return {"processId": f"p{number}", "afterSeq": 0, "waitMs": 60_000}


# --- connections and sessions ----------------------------------------------------------------------------


def a_connection(scene: Scene, _: int) -> None:
    peer = scene.visitor()
    peer.send_frame(8, b"\x03\xe8")
    peer.wait_for_end()
    peer.close()


def a_connection_that_breaks(scene: Scene, _: int) -> None:
    peer = scene.visitor()
    peer.send_frame(TEXT, b"x" * 70_000, final=False)
    peer.send_raw(b"\x80\xfe")
    peer.abort()


def a_connection_that_breaks_the_rules(scene: Scene, _: int) -> None:
    for opcode, payload in ((CONTINUATION, b"x"), (TEXT, b"\xff")):
        peer = scene.visitor()
        peer.send_frame(opcode, payload)
        peer.wait_for_end()
        peer.close()
    peer = scene.visitor()
    peer.send({"id": 1, "result": {}})
    peer.wait_for_end()
    peer.close()


def a_connection_without_an_upgrade(scene: Scene, _: int) -> None:
    host, port = scene.server.url.removeprefix("ws://").split(":")
    for text in (b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"rubbish\r\n\r\n"):
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(text)
            while sock.recv(65_536):
                pass


def a_resumed_session(scene: Scene, _: int) -> None:
    # Kept meanwhile: the usual time of these settings may be over before a busy machine comes back.
    with scene.server.connect() as first:
        session_id = first.open_session()
        first.call("session/keep", {"keepMs": 60_000})
        start(first, "p", ["cat"], pipeStdin=True)
    with scene.server.connect() as second:
        second.open_session(session_id)
        write(second, "p", b"again", "w")
        assert terminate(second, "p")
        outcome(second, "p")
        second.call("session/keep", {"keepMs": 0})


def an_abandoned_session(scene: Scene, _: int) -> None:
    peer = scene.visitor()
    start(peer, "plain", ["sleep", "100"], pipeStdin=True)
    start(peer, "tty", ["sleep", "100"], tty=True)
    run(peer, "over", ["true"])
    peer.close()


def a_read_that_waits_when_its_client_leaves(scene: Scene, number: int) -> None:
    peer = scene.visitor()
    start(peer, f"p{number}", ["sleep", "100"])
    peer.send({"id": "waits", "method": "process/read", "params": waiting(number)})
    peer.call("environment/info", {})
    peer.abort()


# --- files -----------------------------------------------------------------------------------------------


def a_file_handle(scene: Scene, number: int) -> None:
    scene.peer.call("fs/open", {"path": f"file://{scene.file}", "handleId": f"h{number}"})
    scene.peer.call("fs/readBlock", {"handleId": f"h{number}", "offset": 0, "len": 4096})
    scene.peer.call("fs/close", {"handleId": f"h{number}"})
    scene.refusal("fs/open", {"path": f"file://{scene.folder}/none", "handleId": f"h{number}"})


def a_file_handle_left_open(scene: Scene, number: int) -> None:
    peer = scene.visitor()
    peer.call("fs/open", {"path": f"file://{scene.file}", "handleId": f"h{number}"})
    peer.close()


def whole_files(scene: Scene, _: int) -> None:
    scene.peer.call("fs/readFile", {"path": f"file://{scene.large}"})
    content = base64.b64encode(b"y" * 1_000_000).decode()
    scene.peer.call("fs/writeFile", {"path": f"file://{scene.folder}/new", "dataBase64": content})
    scene.peer.call("fs/walk", {"path": f"file://{scene.folder}"} | WALK)
    missing = {"sourcePath": f"file://{scene.folder}/none", "destinationPath": f"file://{scene.folder}/to"}
    scene.refusal("fs/copy", {**missing, "recursive": True})


WALK: Json = {
    "options": {"maxDepth": 3, "maxDirectories": 10, "maxEntries": 10, "followDirectorySymlinks": False}
}


def sandboxed_files(scene: Scene, number: int) -> None:
    sandbox = {"sandbox": read_only(scene.folder)}
    scene.peer.call("fs/readFile", {"path": f"file://{scene.file}", **sandbox})
    scene.peer.call("fs/getMetadata", {"path": f"file://{scene.file}", **sandbox})
    scene.peer.call("fs/open", {"path": f"file://{scene.file}", "handleId": f"h{number}", **sandbox})
    scene.peer.call("fs/close", {"handleId": f"h{number}"})
    scene.refusal("fs/writeFile", {"path": f"file://{scene.file}", "dataBase64": "", **sandbox})


# --- HTTP ------------------------------------------------------------------------------------------------


def a_buffered_answer(scene: Scene, number: int) -> None:
    assert scene.peer.call("http/request", scene.get(number, "/echo"))["status"] == 200
    assert scene.peer.call("http/request", scene.get(number, "/redir"))["status"] == 200


def a_streamed_answer(scene: Scene, number: int) -> None:
    scene.peer.call("http/request", scene.get(number, "/big", streamResponse=True))
    while not scene.peer.notification("http/request/bodyDelta").get("done"):
        pass


def a_failed_request(scene: Scene, number: int) -> None:
    scene.refusal("http/request", scene.get(number, scene.refused))
    scene.refusal("http/request", scene.get(number, "/short"))
    scene.refusal("http/request", scene.get(number, "/slow", timeoutMs=5))


def a_streamed_answer_whose_client_leaves(scene: Scene, number: int) -> None:
    peer = scene.visitor()
    peer.call("http/request", scene.get(number, "/stream", streamResponse=True))
    peer.notification("http/request/bodyDelta")
    peer.abort()


LIVES = {
    name: cast(Life, value)
    for name, value in list(globals().items())
    if callable(value)
    and getattr(value, "__module__", "") == __name__
    and list(getattr(value, "__annotations__", {}))[:2] in (["scene", "number"], ["scene", "_"])
}
