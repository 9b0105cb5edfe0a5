"""What holds for every test of the carriers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.support.greenlets import loop_failures

__all__ = ["loop_failures"]


@pytest.fixture(autouse=True)
def _failures_count(loop_failures: list[str]) -> None:
    """Let no failure in the event loop pass unseen."""


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected non-blocking stream sockets: ours, and the peer's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs


@pytest.fixture
def tcp_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a TCP connection, non-blocking: ours, and the peer's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs
