"""Boxes for tests: one at a real server, one at the fake."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from execserver.client.options import ExecServerClientConnectOptions
from execserver_client._websocket import WebSocketTransport
from execserver_client.box import Box
from execserver_client.process import Process
from tests.sdk.fake_server import FakeServer
from tests.sdk.support import LIMIT_S, run_async

QUICK = ExecServerClientConnectOptions(resume_interval=0.005, resume_window=30.0, close_timeout=5.0)


def box_of(url: str, options: ExecServerClientConnectOptions = QUICK) -> Box:
    """Return a box at a real server, which is not open yet."""

    async def open_transport(timeout: float) -> WebSocketTransport:
        return await WebSocketTransport.connect(url, options, timeout)

    return Box(open_transport, options)


def with_box(
    url: str,
    use: Callable[[Box], Awaitable[None]],
    options: ExecServerClientConnectOptions = QUICK,
    limit: float = LIMIT_S,
) -> None:
    """Use a box at a real server; nothing may be left of it."""

    async def main() -> None:
        async with await box_of(url, options).open() as box:
            await use(box)

    run_async(main(), limit)


@asynccontextmanager
async def fake_box(fake: FakeServer, options: ExecServerClientConnectOptions = QUICK) -> AsyncIterator[Box]:
    """Open a box at a fake, which starts and kills whatever it is asked to."""
    fake.answers.setdefault("process/start", lambda params: {"processId": params["processId"]})
    fake.answers.setdefault("process/terminate", lambda params: {"running": True})
    async with await Box(fake.open_transport, options).open() as box:
        yield box


def with_process(use: Callable[[Process, FakeServer], Awaitable[None]]) -> None:
    """Use process `p` of a fake."""

    async def main() -> None:
        fake = FakeServer()
        async with fake_box(fake) as box:
            await use(await box.start(["cat"], process_id="p", pipe_stdin=True), fake)

    run_async(main())


async def until(ready: Callable[[], Awaitable[bool]], limit: float = 20.0) -> None:
    """Ask until it is so; fails after `limit` seconds."""
    async with asyncio.timeout(limit):
        while not await ready():
            await asyncio.sleep(0.005)


async def running(box: Box) -> list[tuple[str, ...]]:
    """Return the command lines of the session's processes that run."""
    return [each.argv for each in await box.processes() if each.running]


async def nothing_runs(box: Box) -> bool:
    """Return whether no process of the session runs."""
    return not await running(box)


def say(fake: FakeServer, seq: int, data: bytes, stream: str = "stdout") -> None:
    """Let process `p` print something."""
    chunk = base64.b64encode(data).decode()
    fake.current.push("process/output", processId="p", seq=seq, stream=stream, chunk=chunk)


def end(fake: FakeServer, seq: int, code: int = 0) -> None:
    """Let process `p` exit with this seq and close with the next."""
    fake.current.push("process/exited", processId="p", seq=seq, exitCode=code)
    fake.current.push("process/closed", processId="p", seq=seq + 1)


async def drop(fake: FakeServer) -> None:
    """End the connection and wait until the session goes on."""
    before = len(fake.asked("initialized"))
    fake.current.drop()
    await fake.wait_for("initialized", before + 1)


def read_answer(
    chunks: list[tuple[int, bytes]], next_seq: int, *, exit_code: int | None = None, closed: bool = False
) -> dict[str, object]:
    """Return the result of a `process/read`."""
    return {
        "chunks": [
            {"seq": seq, "stream": "stdout", "chunk": base64.b64encode(data).decode()} for seq, data in chunks
        ],
        "nextSeq": next_seq,
        "exited": exit_code is not None,
        "exitCode": exit_code,
        "closed": closed,
        "failure": None,
        "sandboxDenied": False,
    }
