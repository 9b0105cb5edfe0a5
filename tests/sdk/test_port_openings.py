"""The first bytes of a forwarded connection, which go along with its opening, by the asyncio client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from execserver_client.box import Box
from tests.sdk.boxes import fake_box
from tests.sdk.fake_server import SESSION, FakeServer
from tests.sdk.support import run_async

FIRST = "Zmlyc3Q="  # first


@asynccontextmanager
async def at_fake(**opened: Any) -> AsyncIterator[tuple[Box, FakeServer]]:
    """A box at a fake that forwards ports and answers each opening alike."""
    fake = FakeServer()
    info = {"shell": {"name": "sh", "path": "/bin/sh"}, "execserver": {"portForward": "loopback"}}
    fake.answers["initialize"] = lambda params: {"sessionId": SESSION, "environmentInfo": info}
    fake.answers["port/open"] = lambda params: {
        "portId": params["portId"],
        "address": {"host": "h", "port": 1},
        "windowBytes": 1 << 20,
        **opened,
    }
    fake.answers["port/close"] = lambda params: {}
    async with fake_box(fake) as box:
        yield box, fake


@pytest.mark.parametrize(
    ("opened", "rest"), [({}, [(0, FIRST)]), ({"received": 2}, [(2, "cnN0")]), ({"received": 5}, [])]
)
def test_what_a_server_has_not_taken_follows(opened: dict[str, int], rest: list[tuple[int, str]]) -> None:
    """A server that does not know of first bytes takes none of them."""

    async def main() -> None:
        async with at_fake(**opened) as (box, fake):
            fake.answers["port/data"] = lambda params: {"received": 5}
            async with box.ports.open("h", 1, first=b"first"):
                assert [each.params["chunk"] for each in fake.asked("port/open")] == [FIRST]
                sent = [each.params for each in fake.asked("port/data")]
                assert [(each["offset"], each["chunk"]) for each in sent] == rest

    run_async(main())


def test_an_opening_that_is_cancelled_while_the_rest_is_sent_closes_the_connection() -> None:
    async def main() -> None:
        async with at_fake() as (box, fake):
            opening = asyncio.ensure_future(box.ports.open("h", 1, first=b"first"))
            await fake.wait_for("port/data")  # which is not answered
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            opened = fake.asked("port/open")[0].params["portId"]
            assert [each.params["portId"] for each in fake.asked("port/close")] == [opened]

    run_async(main())


def test_a_forward_sends_along_what_has_come_already() -> None:
    async def main() -> None:
        async with at_fake(received=5) as (box, fake), box.ports.forward(0, "h", 1) as forward:
            with socket.create_connection(forward.address) as here:
                here.sendall(b"first")  # before the loop can accept it
                opening = await fake.wait_for("port/open")
            assert opening.params["chunk"] == FIRST

    run_async(main())
