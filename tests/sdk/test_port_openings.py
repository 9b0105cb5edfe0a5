"""How a connection to a forwarded port begins, with its first bytes, and how it ends if some are refused."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from execserver_client.box import Box
from tests.sdk.boxes import fake_box
from tests.sdk.fake_server import SESSION, FakeServer, Refusal
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


def refuse(params: Any) -> object:
    raise Refusal(-32600, "unknown port")


@asynccontextmanager
async def connected_here(**opened: Any) -> AsyncIterator[tuple[FakeServer, socket.socket]]:
    """A connection to a forwarded port, behind its opening."""
    loop = asyncio.get_running_loop()
    async with at_fake(**opened) as (box, fake), box.ports.forward(0, "h", 1) as forward:
        with socket.socket() as here:
            here.setblocking(False)
            await loop.sock_connect(here, forward.address)
            await fake.wait_for("port/open")
            yield fake, here


def test_a_refused_piece_ends_a_forwarded_connection_at_once_and_by_a_reset() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with connected_here() as (fake, here):
            del fake.answers["port/close"]  # a box that refuses may also be silent
            fake.answers["port/data"] = refuse
            await loop.sock_sendall(here, b"x")
            with pytest.raises(ConnectionResetError):  # by an end, who has sent it would take it for received
                await asyncio.wait_for(loop.sock_recv(here, 100), 20)
            closing = await fake.wait_for("port/close")
            fake.current.reply(closing.call_id, {})

    run_async(main())


def test_a_refused_end_resets_a_forwarded_connection() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with connected_here() as (fake, here):
            fake.answers["port/data"] = refuse
            here.shutdown(socket.SHUT_WR)
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(loop.sock_recv(here, 100), 20)
            await fake.wait_for("port/close")

    run_async(main())


def test_a_piece_refused_behind_the_end_of_the_stream_takes_nothing_from_what_has_come() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with connected_here() as (fake, here):

            def end_and_refuse(params: Any) -> object:
                fake.current.push("port/bytes", portId=params["portId"], offset=0, chunk=FIRST, eof=False)
                fake.current.push("port/closed", portId=params["portId"], error="reset")
                return refuse(params)

            fake.answers["port/data"] = end_and_refuse
            await loop.sock_sendall(here, b"x")
            assert await asyncio.wait_for(loop.sock_recv(here, 100), 20) == b"first"
            await fake.wait_for("port/close")

    run_async(main())
