"""What ends at a box behind a relay is freed at once: nothing waits for a collection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from execserver_client.connecting import connect
from tests.conftest import LONG
from tests.sdk.relay_scene import RelayScene, until
from tests.sdk.settling import until_alone
from tests.support.lives import explained, left_by

LIVES = 300 if LONG else 4


@pytest.fixture
def own_scene() -> Iterator[RelayScene]:
    """A relay that has no streams of other tests: one whose end was cut off stays for half a minute."""
    with RelayScene() as scene:
        yield scene


async def lived(scene: RelayScene, *, loses: bool) -> None:
    async with connect(scene.box, token=scene.token) as box:
        if loses:
            scene.way.cut()
        assert (await box.run(["echo", "on"])).text == "on\n"
    # A stream whose end is cut off waits at the executor for its harness to come back, and it has 128 places.
    await until(lambda: not scene.relay.metric("execserver_relay_streams"))
    scene.way.cut()


@pytest.mark.timeout(900 if LONG else 180)
def test_a_box_with_and_without_a_loss_is_freed_with_its_end(own_scene: RelayScene) -> None:
    with asyncio.Runner() as runner:
        left = left_by(
            lambda number: runner.run(lived(own_scene, loses=number % 2 == 1)),
            LIVES,
            settle=lambda: runner.run(until_alone()),
        )
        # Of others there are the proxy's threads, and asyncio's own sockets.
        assert left.ours == {}, explained(left.ours)
