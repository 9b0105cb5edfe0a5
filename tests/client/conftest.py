"""Fixtures of the client's tests: a fake server, and a real one.

The real one is this project's own; `EXECSERVER_TEST_SERVER` may hold another command (without `--listen`)
that is started in its place, to see the tests against another implementation of the contract.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.client import ExecServerClient, ExecServerClientConnectOptions, RemoteProcess
from tests.client.fake_server import FakeServer
from tests.support.greenlets import the_hub_settles
from tests.support.server_process import OURS, Flavour, ServerProcess

__all__ = ["the_hub_settles"]

QUICK = ExecServerClientConnectOptions(resume_interval=0.001, resume_window=30.0, close_timeout=0.2)


@pytest.fixture
def fake() -> FakeServer:
    """A server in memory."""
    return FakeServer()


@pytest.fixture
def client(fake: FakeServer) -> Iterator[ExecServerClient]:
    """A client of the server in memory."""
    client = ExecServerClient(fake.open_transport, QUICK)
    yield client
    client.close()


@pytest.fixture
def process(client: ExecServerClient) -> RemoteProcess:
    """Process `p` of the server in memory."""
    return client.start(["cat"], process_id="p", pipe_stdin=True)


@pytest.fixture(scope="session")
def flavour(tmp_path_factory: pytest.TempPathFactory) -> Flavour:
    """The real server's command."""
    other = os.environ.get("EXECSERVER_TEST_SERVER")
    if not other:
        return OURS
    # SIGTERM ends some implementations by the signal itself; the tests here do not care.
    return Flavour(
        "other", tuple(shlex.split(other)), 0, {"CODEX_HOME": str(tmp_path_factory.mktemp("home"))}
    )


@pytest.fixture(scope="module")
def server(flavour: Flavour) -> Iterator[ServerProcess]:
    """A real server for all tests of a module."""
    with _running(flavour) as server:
        yield server


class _running:
    """Starts a server and ends it without looking at its exit code."""

    def __init__(self, flavour: Flavour) -> None:
        self._server = ServerProcess(flavour)

    def __enter__(self) -> ServerProcess:
        return self._server

    def __exit__(self, *exc_info: object) -> None:
        self._server.stop()
        self._server.release()


@pytest.fixture
def remote(server: ServerProcess) -> Iterator[ExecServerClient]:
    """A client of the real server."""
    with ExecServerClient.connect(server.url) as client:
        yield client


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder both sides see."""
    return tmp_path
