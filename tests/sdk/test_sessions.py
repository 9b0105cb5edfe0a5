"""Kept sessions and watched processes with two asyncio clients and a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from execserver.client.errors import InvalidRequestError, UnsupportedByServer
from execserver.client.rules.event_log import Closed, Exited, Output
from execserver.protocol.environment import Extensions
from execserver_client.box import Box
from execserver_client.process import Process
from tests.sdk.boxes import QUICK, box_of
from tests.sdk.cutting import cutting
from tests.sdk.support import run_async
from tests.support.server_process import ServerProcess


@asynccontextmanager
async def connect(
    url: str, *, name: str | None = None, keep: int | None = None, resume: str | None = None
) -> AsyncIterator[Box]:
    """Connect under a name, to be kept for so many seconds."""
    keep_ms = None if keep is None else keep * 1000
    options = QUICK.replace(session_name=name, keep_ms=keep_ms, resume_session_name=resume)
    async with await box_of(url, options).open() as box:
        yield box


async def printed(process: Process) -> bytes:
    """Return the next output of a process."""
    event = await process.next_event(20)
    assert isinstance(event, Output)
    return event.data


def test_a_session_is_found_by_its_name_with_all_that_happened(server: ServerProcess) -> None:
    async def play() -> None:
        async with connect(server.url, name="parts-job", keep=60) as first:
            process = await first.start(["sh", "-c", "echo done; exit 3"], process_id="p", name="build")
            await process.wait(20)
            await first.detach()
        async with connect(server.url, resume="parts-job") as again:
            (entry,) = [one for one in await again.sessions.processes() if one.session_name == "parts-job"]
            assert (entry.process_name, entry.exit_code) == ("build", 3)
            assert await printed(await again.attach("p")) == b"done\n"
            assert (await again.sessions.keep(0)).keep_ms == 0
            assert "parts-job" in [one.name for one in await again.sessions.list()]

    run_async(play())


def test_another_client_follows_takes_over_and_leaves(server: ServerProcess) -> None:
    async def play() -> None:
        async with connect(server.url, name="shell") as owner, connect(server.url) as other:
            process = await owner.start(["cat"], pipe_stdin=True, process_id="p")
            await process.write(b"one\n")
            watched = await other.sessions.watch(owner.session_id, "p")
            assert not watched.writer
            assert await printed(watched) == b"one\n"
            with pytest.raises(InvalidRequestError, match="take it first"):
                await watched.write(b"no")
            await watched.take()
            await watched.write(b"two\n")
            with pytest.raises(InvalidRequestError, match="take it first"):
                await process.write(b"no")
            assert not process.writer
            assert [await printed(process), await printed(process)] == [b"one\n", b"two\n"]
            await watched.close_stdin()
            rest = [event async for event in watched]
            assert [type(event) for event in rest[-2:]] == [Exited, Closed]
            assert await process.wait(20) == 0

    run_async(play())


def test_a_client_that_leaves_does_not_end_what_it_watches(server: ServerProcess) -> None:
    async def play() -> None:
        async with connect(server.url, name="long") as owner:
            process = await owner.start(["cat"], pipe_stdin=True, process_id="p")
            async with connect(server.url) as other:
                watched = await other.sessions.watch(owner.session_id, "p")
                await watched.unwatch()
                with pytest.raises(InvalidRequestError, match="unknown process id"):
                    await watched.read()
                await other.sessions.watch(owner.session_id, "p")
            await process.write(b"still\n")
            assert await printed(process) == b"still\n"

    run_async(play())


def test_a_watched_process_goes_on_over_a_lost_connection(server: ServerProcess) -> None:
    async def play() -> None:
        with cutting(server.url) as proxy:
            async with connect(server.url, name="kept") as owner, connect(proxy.url) as other:
                process = await owner.start(["cat"], pipe_stdin=True, process_id="p")
                watched = await other.sessions.watch(owner.session_id, "p")
                for number in range(3):
                    proxy.cut()
                    await process.write(b"%d\n" % number)
                    assert await printed(watched) == b"%d\n" % number

    run_async(play())


def test_a_cancelled_watch_is_ended(server: ServerProcess) -> None:
    async def play() -> None:
        async with connect(server.url, name="w") as owner, connect(server.url) as other:
            await owner.start(["cat"], pipe_stdin=True, process_id="p")
            for _ in range(3):
                watching = asyncio.ensure_future(other.sessions.watch(owner.session_id, "p"))
                await asyncio.sleep(0)
                watching.cancel()
                with suppress(asyncio.CancelledError):
                    await watching
            assert other.sessions._router.processes == {}

    run_async(play())


def test_a_session_is_ended_by_another_client(server: ServerProcess) -> None:
    async def play() -> None:
        async with connect(server.url, name="left", keep=60) as first:
            await first.start(["sleep", "1000"], process_id="p")
            await first.detach()
        async with connect(server.url) as other:
            (left,) = [one for one in await other.sessions.list() if one.name == "left"]
            assert (left.processes, left.keep_ms) == (1, 60_000)
            assert await other.sessions.end(left.session_id)
            assert not await other.sessions.end(left.session_id)

    run_async(play())


def test_the_log_of_a_process_is_read_in_pages_and_from_its_end(server: ServerProcess) -> None:
    async def play() -> None:
        async with connect(server.url) as box:
            process = await box.start(["sh", "-c", "echo one; read line; echo two; exit 3"], pipe_stdin=True)
            assert await printed(process) == b"one\n"
            await process.write(b"\n")
            await process.wait(20)
            assert await printed(process) == b"two\n"
            read, after = [], 0
            while (page := await process.log(after, max_bytes=1)).chunks:
                read += [(chunk.stream.value, bytes(chunk.chunk)) for chunk in page.chunks]
                after = page.next_seq - 1
            assert read == [("stdout", b"one\n"), ("stdout", b"two\n")]
            assert (page.exit_code, page.lost_bytes) == (3, 0)
            end = await process.log(tail_bytes=1)
            assert [bytes(chunk.chunk) for chunk in end.chunks] == [b"two\n"]

    run_async(play())


def test_a_server_without_kept_sessions_is_not_asked(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        async with connect(server.url) as box:
            monkeypatch.setattr(type(box.sessions._session), "extensions", Extensions())
            with pytest.raises(UnsupportedByServer):
                await box.sessions.list()
            with pytest.raises(UnsupportedByServer):
                await box.sessions.watch("s", "p")
            process = await box.start(["true"])
            with pytest.raises(UnsupportedByServer, match="process/log"):
                await process.log()

    run_async(play())
