"""The newest reference server's recorded traffic about network proxies, played against ours."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.egress_play import play_egress
from tests.support.egress_world import World
from tests.support.folders import plain_place
from tests.support.server_process import OURS

TRANSCRIPTS = (
    "10-networkProxy-env",
    "11-networkProxy-patterns",
    "12-networkProxy-review",
    "13-networkProxy-local",
    "14-networkProxy-limited",
    "15-networkProxy-decider",
    pytest.param("16-networkProxy-socks-udp", marks=pytest.mark.long),
    "17-networkProxy-sandbox-and-env",
    "18-networkProxy-upstream",
    "20-networkProxy-dns",
)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """The network of the recordings."""
    with tempfile.TemporaryDirectory(dir=plain_place(), ignore_cleanup_errors=True) as folder:
        world = World(Path(folder).resolve())
        try:
            yield world
        finally:
            world.close()


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_our_proxy_answers_as_the_newest_reference_server_did(name: str, world: World) -> None:
    # A path that is the same in the URIs of the traffic.
    with tempfile.TemporaryDirectory(dir=plain_place(), ignore_cleanup_errors=True) as folder:
        failures = play_egress(name, Path(folder).resolve(), world, OURS)
    assert not failures, "\n".join(failures)
