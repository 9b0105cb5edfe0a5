"""Fixtures of the SDK's tests: a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server_process import ServerProcess


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """A real server for all tests here; a test that harms it starts its own."""
    with ServerProcess() as server:
        yield server


@pytest.fixture
def url(server: ServerProcess) -> str:
    """Where the real server listens."""
    return server.url
