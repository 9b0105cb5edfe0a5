"""A server of handlers only, with played processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.handlers.asking import Client, Server
from tests.services.fakes import FakeSpawner
from tests.support.greenlets import loop_failures

__all__ = ["loop_failures"]


@pytest.fixture
def handlers_server() -> Iterator[Server]:
    """Services over played processes, which are ended after the test."""
    spawner = FakeSpawner()
    server = Server(spawner)
    yield server
    spawner.signal_failure = None
    for session in list(server.sessions._sessions.values()):
        session.processes.end()
    spawner.end()
    server.close()


@pytest.fixture
def asking(handlers_server: Server) -> Client:
    """A client that has been greeted."""
    return Client(handlers_server)
