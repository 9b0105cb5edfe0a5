"""What holds for every test of the carriers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.support.greenlets import loop_failures
from tests.transports.scene import Handler, Play, Scene, scene
from tests.transports.wires import tcp_connection

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
    with tcp_connection() as (ours, theirs):
        yield ours, theirs


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Start a connection with scripted handlers; it is ended after the test."""
    open_scenes = []

    def start(concurrent_requests: int = 0, observer: object = None, **handlers: Handler) -> Scene:
        opened = scene(monkeypatch, concurrent_requests, observer, **handlers)
        open_scenes.append(opened)
        return opened.__enter__()

    yield start
    for opened in open_scenes:
        opened.__exit__(None, None, None)
