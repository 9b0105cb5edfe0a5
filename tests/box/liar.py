"""A box that means ill: a real WebSocket server that answers each request with whatever a test has it say."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Self

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from tests.box.boxes import Person
from tests.support.relay_process import program

SESSION = "5e551011-0000-4000-8000-000000000000"
EVIL = "\x1b]0;owned\x07\x1b[2J\n../../etc/passwd\u202e"
_MOST_MEMORY_KIB = 1024 * 1024

Answer = Callable[["Asked"], None]


class Asked:
    """One request, and the connection to answer it on."""

    def __init__(self, connection: ServerConnection, message: dict[str, Any]) -> None:
        self._connection = connection
        self.call_id = message.get("id")
        self.method: str = message["method"]
        self.params: dict[str, Any] = message.get("params") or {}

    def say(self, data: str | bytes | Iterable[str]) -> None:
        """Send a message as it is."""
        self._connection.send(data)

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
        self._connection.socket.close()


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
        self._connections: list[ServerConnection] = []
        self._server = serve(self._talk, "127.0.0.1", 0, max_size=None, compression=None, ping_interval=None)
        self.url = f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def _talk(self, connection: ServerConnection) -> None:
        self._connections.append(connection)
        try:
            for message in connection:
                asked = Asked(connection, json.loads(message))
                self.asked.append(asked.method)
                if (answer := self._answers.get(asked.method)) is not None:
                    answer(asked)
        except (ConnectionClosed, OSError):
            pass  # whoever was lied to has left

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for connection in self._connections:
            with suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)  # whoever is still there is not waited for
        self._server.shutdown()
        self._thread.join(10)


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
