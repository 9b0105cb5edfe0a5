"""Fixtures of the SDK's tests: a real server, and an executor behind a relay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sdk.relay_scene import RelayScene
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """A real server for all tests here; a test that harms it starts its own."""
    with ServerProcess() as server:
        yield server


@pytest.fixture(scope="session")
def relay_scene() -> Iterator[RelayScene]:
    """A relay and an executor for all tests here that leave them as they are."""
    with RelayScene() as scene:
        yield scene


@pytest.fixture
def url(server: ServerProcess) -> str:
    """Where the real server listens."""
    return server.url
