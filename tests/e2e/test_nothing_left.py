"""What ends in a server is freed at once: with the garbage collector off, nothing of it is left."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.conftest import LONG
from tests.support.counted_server import CountedServer
from tests.support.http_fixture import HttpFixture
from tests.support.server_lives import LIVES, SETTINGS, Scene

ROUNDS = 1000 if LONG else 25


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A server without a collector."""
    web = HttpFixture()
    try:
        with CountedServer(SETTINGS) as server:
            address = urlsplit(server.url)
            # It makes the timer for all peers that let it wait, which stays.
            with socket.create_connection((address.hostname, address.port)):
                made = Scene(server, web, tmp_path_factory.mktemp("place"))
            yield made
            made.peer.close()
            assert "Traceback" not in server.errors()
    finally:
        web.stop()


@pytest.mark.timeout(600 if LONG else 60)
@pytest.mark.parametrize("life", LIVES)
def test_nothing_is_left_of(scene: Scene, life: str) -> None:
    server = scene.server
    assert isinstance(server, CountedServer)
    left = server.left_by(lambda number: LIVES[life](scene, number), ROUNDS)
    assert (left.ours, left.foreign) == ({}, {}), left.explained
