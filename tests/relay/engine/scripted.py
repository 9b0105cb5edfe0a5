"""An engine that does what a test says: for replies that no real one gives."""

from __future__ import annotations

import time
from collections.abc import Callable

from gevent import sleep, socket, spawn

from execserver.relay.engine.address import Credentials, EngineAddress
from execserver.relay.engine.line import Dialer
from execserver.relay.engine.resp import Decoder, Reply

ROLE = b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"


class ScriptedEngine:
    """Signs everybody in, and then answers each further command with the bytes of `answer`."""

    def __init__(self, answer: Callable[[Reply], bytes]) -> None:
        self._answer = answer
        self._listening = socket.socket()  # gevent's `create_server` would make one that blocks everybody
        self._listening.bind(("127.0.0.1", 0))
        self._listening.listen()
        self._peers: set[socket.socket] = set()
        self._accepting = spawn(self._accept)

    def dialer(self) -> Dialer:
        """Return what connects to it."""
        port = self._listening.getsockname()[1]
        return Dialer(EngineAddress(False, (("127.0.0.1", port),)), Credentials(), {})

    def close(self) -> None:
        """End it and its connections."""
        self._accepting.kill()
        self._listening.close()
        for sock in list(self._peers):
            sock.close()

    def _accept(self) -> None:
        while True:
            sock, _ = self._listening.accept()
            self._peers.add(sock)
            spawn(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        decoder = Decoder()  # a command has the form of a reply
        known = {b"ROLE": ROLE, b"PING": b"+PONG\r\n"}
        try:
            while data := sock.recv(65536):
                for command in decoder.feed(data):
                    assert isinstance(command, list)
                    first = command[0] if isinstance(command[0], bytes) else b""
                    sock.sendall(known.pop(first) if first in known else self._answer(command))
        except OSError:
            pass
        finally:
            self._peers.discard(sock)
            sock.close()


def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until something holds, while greenlets run."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        sleep(0.01)
