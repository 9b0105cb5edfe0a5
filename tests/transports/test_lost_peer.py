"""What a peer sent before it left is handled although nothing can be written to it any more."""

from __future__ import annotations

import socket

from execserver.settings import Settings
from execserver.transports.ws_server import Shared, WebSocketTransport
from tests.support.waiting import wait_until
from tests.support.ws_peer import TEXT, client_frame


class Taker:
    """Takes what a transport delivers."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.over = False

    def receive(self, messages: list[bytes]) -> None:
        """Take messages; none may come after the end."""
        assert not self.over
        self.messages += messages

    def ended(self) -> None:
        """Note the end."""
        self.over = True


def test_a_write_that_fails_loses_nothing_that_was_received() -> None:
    settings = Settings()
    taker = Taker()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    accepted.setblocking(False)
    transport = WebSocketTransport(accepted, "peer", settings, Shared(settings), b"")
    transport.start(taker)
    peer.sendall(client_frame(TEXT, b"one") + client_frame(TEXT, b"two"))
    peer.close()

    def write() -> bool:
        transport.outbox.send(b"answer")
        transport.outbox.flush()  # the loop does not run, so nothing has been read yet
        return taker.over

    wait_until(write)
    assert taker.messages == [b"one", b"two"]
    assert accepted.fileno() == -1
