"""What ends at the asyncio client is freed at once: no process, command or box waits for a collection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from execserver.wire.client_frames import ping_frame
from execserver_client._websocket import WebSocketTransport
from execserver_client.box import Box
from execserver_client.errors import CommandFailed, CommandTimeout, OutputGap, OutputTooLarge
from tests.conftest import LONG
from tests.sdk.boxes import QUICK, box_of, until
from tests.sdk.settling import until_alone
from tests.support.lives import assert_freed

LIVES = 1000 if LONG else 30

# A socket's transport of asyncio keeps a method of its own, also when it is closed.
ASYNCIO_ITSELF = [
    *("builtins.dict", "builtins.tuple", "socket.socket", "asyncio.trsock.TransportSocket"),
    "asyncio.selector_events._SelectorSocketTransport",
    "method _SelectorSocketTransport._read_ready__get_buffer",
]

Live = Callable[[Box], Awaitable[object]]


def freed(url: str, live: Live) -> None:
    """Play lives on one box, in one event loop, and fail if something is left of them."""
    with asyncio.Runner() as runner:
        box = runner.run(box_of(url, QUICK).open())
        try:
            runner.run(_pinged(box))
            runner.run(iterated(box))  # the runner's context keeps who has read last
            assert_freed(
                lambda _: runner.run(_lived(live, box)), LIVES, settle=lambda: runner.run(_settled(box))
            )
        finally:
            runner.run(box.aclose())


async def _pinged(box: Box) -> None:
    """Exchange a ping: what reads such frames is made at the first, which else may come among the lives."""
    assert box._session._connection is not None
    transport = box._session._connection._transport
    assert isinstance(transport, WebSocketTransport)
    link = transport._link
    link.write([ping_frame()])

    async def reads_them() -> bool:
        return link._library is not None

    await until(reads_them)


async def _lived(live: Live, box: Box) -> None:
    await live(box)


async def _settled(box: Box) -> None:
    async def is_over() -> bool:
        return not box._router.processes and len(box._errands._tasks) == 0

    await until(is_over)
    for _ in range(5):
        await asyncio.sleep(0)


async def completed(box: Box) -> None:
    assert (await box.run(["echo", "x"], input="y")).ok


async def iterated(box: Box) -> None:
    async with await box.start(["echo", "x"]) as process:
        assert [data async for data in process.stdout] == [b"x\n"]


async def cancelled(box: Box) -> None:
    task = asyncio.create_task(box.run(["sleep", "60"], input="x"))
    await asyncio.sleep(0.01)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def too_long(box: Box) -> None:
    with contextlib.suppress(CommandTimeout):
        await box.run(["sleep", "60"], timeout=0.01)


async def failed(box: Box) -> None:
    for act in (
        box.run(["false"], check=True),
        box.run(["seq", "1000"], max_output=10),
        box.run(["none-such"]),
    ):
        with contextlib.suppress(CommandFailed, OutputTooLarge, Exception):
            await act


async def lost(box: Box) -> None:
    process = await box.start(["true"])
    process.deliver_gap(1, 1, None)
    for stream in (process.stderr, process.stdout):
        with contextlib.suppress(OutputGap, StopAsyncIteration):  # the process may be faster than the gap
            await anext(stream)
    await process.wait()


@pytest.mark.parametrize("live", [completed, iterated, cancelled, too_long, failed, lost])
def test_a_command(url: str, live: Live) -> None:
    freed(url, live)


def test_a_box(url: str) -> None:
    with asyncio.Runner() as runner:

        async def live() -> None:
            async with await box_of(url, QUICK).open() as box:
                await box.run(["true"])
                await box.start(["sleep", "60"])

        assert_freed(
            lambda _: runner.run(live()),
            LIVES,
            settle=lambda: runner.run(until_alone()),
            foreign=ASYNCIO_ITSELF,
        )
