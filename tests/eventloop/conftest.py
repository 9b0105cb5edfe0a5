"""What tests of the event loop's tools share."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.support.greenlets import loop_failures
from tests.transports.wires import tcp_connection

__all__ = ["loop_failures"]


@pytest.fixture
def tcp_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected non-blocking TCP sockets: ours, and the peer's."""
    with tcp_connection() as pair:
        yield pair
