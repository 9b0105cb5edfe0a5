"""A box that means ill: a real WebSocket server that answers each request with whatever a test has it say."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Self

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from tests.box.boxes import Person
from tests.support.relay_process import program

SESSION = "5e551011-0000-4000-8000-000000000000"
EVIL = "\x1b]0;owned\x07\x1b[2J\n../../etc/passwd\u202e"
_MOST_MEMORY_KIB = 1024 * 1024

Answer = Callable[["Asked"], None]


class Connection:
    """The server's end of a WebSocket."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._protocol = ServerProtocol(max_size=None)

    def messages(self) -> Iterator[bytes]:
        """Yield what comes, until the end."""
        pieces = bytearray()
        while data := self.socket.recv(65536):
            self._protocol.receive_data(data)
            for event in self._protocol.events_received():
                if isinstance(event, Request):
                    self._protocol.send_response(self._protocol.accept(event))
                elif isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.CONT):
                    pieces += event.data
                    if event.fin:
                        yield bytes(pieces)
                        pieces.clear()
            self.flush()

    def send(self, data: str | bytes) -> None:
        """Send a text, or what is none."""
        if self._protocol.state is not State.OPEN:
            raise ConnectionError("the client has said goodbye")
        if isinstance(data, str):
            self._protocol.send_text(data.encode())
        else:
            self._protocol.send_binary(data)
        self.flush()

    def flush(self) -> None:
        """Send what the protocol has to say."""
        for piece in self._protocol.data_to_send():
            self.socket.sendall(piece)


class Asked:
    """One request, and the connection to answer it on."""

    def __init__(self, connection: Connection, message: dict[str, Any]) -> None:
        self._connection = connection
        self.call_id = message.get("id")
        self.method: str = message["method"]
        self.params: dict[str, Any] = message.get("params") or {}

    def say(self, data: str | bytes) -> None:
        """Send a message as it is."""
        self._connection.send(data)

    def raw(self, data: bytes) -> None:
        """Send bytes that need not be a frame."""
        self._connection.socket.sendall(data)

    def result(self, result: object) -> None:
        """Answer."""
        self.say(json.dumps({"id": self.call_id, "result": result}))

    def refuse(self, text: str, code: int = -32603) -> None:
        """Answer with an error."""
        self.say(json.dumps({"id": self.call_id, "error": {"code": code, "message": text}}))

    def push(self, method: str, **params: object) -> None:
        """Send a notification."""
        self.say(json.dumps({"method": method, "params": params}))

    def output(self, seq: int, data: bytes, stream: str = "stdout") -> None:
        """Let the process of a `process/start` print something."""
        chunk = base64.b64encode(data).decode()
        self.push("process/output", processId=self.params["processId"], seq=seq, stream=stream, chunk=chunk)

    def end(self, seq: int, code: int = 0) -> None:
        """Let the process of a `process/start` end."""
        self.push("process/exited", processId=self.params["processId"], seq=seq, exitCode=code)
        self.push("process/closed", processId=self.params["processId"], seq=seq + 1)

    def hang_up(self) -> None:
        """End the TCP connection in the middle."""
        self._connection.socket.shutdown(socket.SHUT_RDWR)


def introduce(asked: Asked) -> None:
    """Answer `initialize` as a server that can do everything."""
    own = {"version": EVIL, "processCloseStdin": True, "keptSessions": True, "processWatch": True}
    asked.result(
        {
            "sessionId": asked.params.get("resumeSessionId") or SESSION,
            "environmentInfo": {
                "shell": {"name": "sh", "path": "/bin/sh"},
                "execserver": {**own, "processLog": True, "processResize": True, "portForward": "any"},
            },
            "kept": {"keepMs": 1000},
        }
    )


class Liar:
    """Answers by a table; requests that are not in it stay without an answer."""

    def __init__(self, **answers: Answer) -> None:
        """Methods have `_` in the place of `/`."""
        self._answers = {"initialize": introduce} | {
            name.replace("_", "/", 1): answer for name, answer in answers.items()
        }
        self.asked: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"ws://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(sock)
            thread = threading.Thread(target=self._talk, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _talk(self, sock: socket.socket) -> None:
        connection = Connection(sock)
        try:
            for message in connection.messages():
                asked = Asked(connection, json.loads(message))
                self.asked.append(asked.method)
                if (answer := self._answers.get(asked.method)) is not None:
                    answer(asked)
        except OSError:
            pass  # whoever was lied to has left
        finally:
            sock.close()

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for sock in (self._listener, *self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # whoever is still there is not waited for
        for thread in self._threads:
            thread.join(10)
        self._listener.close()


def visit(person: Person, *words: str, within: float = 30.0, **options: Any) -> tuple[int, str, str]:
    """Run a command line with bounded memory; return status and texts, which hold no traceback."""
    done = subprocess.run(
        ["sh", "-c", f'ulimit -v {_MOST_MEMORY_KIB}; exec "$@"', "sh", *program(), *words],
        **{"input": b"", "env": person.environ, "cwd": person.home, "capture_output": True, **options},
        timeout=within,
        check=False,
    )
    out, err = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    assert "Traceback" not in err, err
    return done.returncode, out, err


def is_harmless(text: str) -> bool:
    """Return whether a terminal shows a text and obeys nothing in it."""
    return all(character.isprintable() or character == "\n" for character in text)
