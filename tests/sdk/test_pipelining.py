"""Input of a box's process with several writes under way: in order and once, also over lost connections."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

import pytest

from execserver.client.options import ExecServerClientConnectOptions
from execserver.client.rules.write_window import WINDOW_BYTES
from execserver.protocol.batches import FsNodeKind, FsWriteEntry
from execserver_client.errors import RequestFailed, ResumeFailed, StdinUnavailable, WaitTimeout
from execserver_client.process import Process
from execserver_client.sync import Box as BlockingBox
from execserver_client.sync._portal import Portal
from tests.sdk.boxes import QUICK, box_of, fake_box, read_answer, with_process
from tests.sdk.cutting_proxy import before
from tests.sdk.fake_server import FakeServer, Refusal, Request
from tests.sdk.support import run_async

PIECE = 100_000


def pieces(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield b"%08d" % number * (PIECE // 8)


async def slowly(count: int) -> AsyncIterator[bytes]:
    for piece in pieces(count):
        await asyncio.sleep(0)
        yield piece


def digest(count: int) -> str:
    return hashlib.sha256(b"".join(pieces(count))).hexdigest()


def accept(fake: FakeServer) -> None:
    fake.answers["process/write"] = lambda params: {"status": "accepted"}


def ids(requests: list[Request]) -> list[str]:
    return [request.params["writeId"] for request in requests]


def test_everything_arrives_in_order_whatever_gives_the_pieces(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with await box_of(url).open() as box:
            for given in (pieces(20), slowly(20), [*pieces(20)]):
                process = await box.start(["sh", "-c", f"cat > {tmp_path}/there"], pipe_stdin=True)
                await process.write_all(given)
                await process.close_stdin()
                assert await process.wait(20) == 0
                assert hashlib.sha256((tmp_path / "there").read_bytes()).hexdigest() == digest(20)

    run_async(main())


def test_the_blocking_twin_asks_a_generator_that_uses_the_box_itself(url: str) -> None:
    portal = Portal()
    with BlockingBox(portal, portal.call(box_of(url).open)) as box:
        process = box.start(["cat"], pipe_stdin=True)
        process.write_all(box.run(["echo", str(number)]).stdout for number in range(5))
        process.write_all([b"and ", b"a list"])
        process.close_stdin()
        assert b"".join(process.stdout) == b"0\n1\n2\n3\n4\nand a list"


def test_cuts_neither_lose_nor_double_anything(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with before(url) as proxy, await box_of(proxy.url).open() as box:
            process = await box.start(["sh", "-c", f"cat > {tmp_path}/there"], pipe_stdin=True)

            def cutting() -> Iterator[bytes]:
                for number, piece in enumerate(pieces(120)):
                    if number % 25 == 20:
                        proxy.cut()
                    yield piece

            await process.write_all(cutting())
            await process.close_stdin()
            assert await process.wait(20) == 0
            assert box.resumptions >= 4
        assert hashlib.sha256((tmp_path / "there").read_bytes()).hexdigest() == digest(120)

    run_async(main())


def test_a_mebibyte_goes_ahead_of_the_first_answer() -> None:
    async def use(process: Process, fake: FakeServer) -> None:
        writing = asyncio.create_task(process.write_all([bytes(300_000)] * 10))
        await fake.wait_for("process/write", 3)
        await asyncio.sleep(0)
        assert 3 * 300_000 <= WINDOW_BYTES < 4 * 300_000
        asked = fake.asked("process/write")
        assert len(asked) == 3
        accept(fake)
        for request in asked:
            fake.current.reply(request.call_id, {"status": "accepted"})
        await writing
        assert len(fake.asked("process/write")) == 10

    with_process(use)


def test_what_was_not_answered_is_sent_again_first_and_under_its_id() -> None:
    async def use(process: Process, fake: FakeServer) -> None:
        writing = asyncio.create_task(process.write_all([b"%d" % number for number in range(20)]))
        await fake.wait_for("process/write", 16)  # the window
        fake.current.reply(fake.asked("process/write")[0].call_id, {"status": "accepted"})
        await fake.wait_for("process/write", 17)
        accept(fake)
        fake.answers["process/read"] = lambda params: read_answer([], 1)
        fake.current.drop()
        await writing
        again = [request for request in fake.asked("process/write") if request.connection == 1]
        sent = ids(fake.asked("process/write"))
        assert ids(again) == [*sent[1:17], *sent[-3:]]
        assert len(set(sent)) == 20

    with_process(use)


def test_an_input_that_is_not_there_ends_the_writing_and_the_box_goes_on(url: str) -> None:
    taken = 0

    def counted() -> Iterator[bytes]:
        nonlocal taken
        for piece in pieces(10_000):
            taken += 1
            yield piece

    async def main() -> None:
        async with await box_of(url).open() as box:
            async with await box.start(["sleep", "60"]) as process:
                with pytest.raises(StdinUnavailable):
                    await process.write_all(counted())
            assert taken < 100
            assert (await box.run(["true"])).ok

    run_async(main())


def test_a_session_that_ends_ends_the_writing() -> None:
    options = ExecServerClientConnectOptions(resume_interval=0.005, resume_window=0.2)

    async def main() -> None:
        fake = FakeServer()
        async with fake_box(fake, options) as box:
            process = await box.start(["cat"], process_id="p", pipe_stdin=True)
            writing = asyncio.create_task(process.write_all([b"x"] * 20))
            await fake.wait_for("process/write", 16)
            fake.unreachable = True
            fake.current.drop()
            with pytest.raises(ResumeFailed):
                await writing

    run_async(main())


def test_writers_that_are_cancelled_or_too_slow_give_their_places_back() -> None:
    options = ExecServerClientConnectOptions(max_in_flight=17, request_timeout=2.0)  # answers come in time

    async def main() -> None:
        fake = FakeServer()
        async with fake_box(fake, options) as box:
            process = await box.start(["cat"], process_id="p", pipe_stdin=True)
            with pytest.raises(WaitTimeout, match="process/write"):
                await process.write_all([b"x"] * 20)
            for request in fake.asked("process/write"):
                fake.current.reply(request.call_id, {"status": "accepted"})
            writing = asyncio.create_task(process.write_all([b"x"] * 20))
            await fake.wait_for("process/write", 32)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            for request in fake.asked("process/write")[16:]:
                fake.current.reply(request.call_id, {"status": "accepted"})
            accept(fake)
            await process.write_all([b"x"] * 40)
            assert len(fake.asked("process/write")) == 72

    run_async(main())


def test_large_input_of_a_command_is_pipelined_too(url: str) -> None:
    async def main() -> None:
        async with await box_of(url, QUICK).open() as box:
            data = b"".join(pieces(30))
            result = await box.run(["sha256sum"], input=data, check=True)
            assert result.text.split()[0] == digest(30)
            early = await box.run(["true"], input=data)
            assert early.exit_code == 0

    run_async(main())


def test_bytes_in_place_of_pieces_are_refused(url: str) -> None:
    async def use(process: Process, fake: FakeServer) -> None:
        with pytest.raises(TypeError, match="several pieces"):
            await process.write_all(b"abc")  # type: ignore[arg-type]
        assert fake.asked("process/write") == []

    with_process(use)
    portal = Portal()
    with BlockingBox(portal, portal.call(box_of(url).open)) as box:
        process = box.start(["cat"], pipe_stdin=True)
        with pytest.raises(TypeError, match="several pieces"):
            process.write_all(b"abc")  # type: ignore[arg-type]


PARTS = [
    FsWriteEntry(
        name=b"x", kind=FsNodeKind.FILE, content=bytes(500_000), part=b"p", offset=at, size=6_000_000
    )
    for at in range(0, 6_000_000, 500_000)
]


def offsets(fake: FakeServer, connection: int) -> list[int]:
    asked = fake.asked("fs/writePart")
    return [each.params["offset"] for each in asked if each.connection == connection]


async def parts_slowly() -> AsyncIterator[FsWriteEntry]:
    for each in PARTS:
        await asyncio.sleep(0)
        yield each


@pytest.mark.parametrize("given", [lambda: PARTS, lambda: iter(PARTS), parts_slowly])
def test_pieces_of_a_file_go_in_order_some_mebibytes_ahead_of_the_answers(
    given: Callable[[], Iterable[FsWriteEntry]],
) -> None:
    async def main() -> None:
        fake = FakeServer()
        async with fake_box(fake) as box:
            writing = asyncio.create_task(box.files.write_parts("/", given()))
            await fake.wait_for("fs/writePart", 8)
            await asyncio.sleep(0)
            order = [part.offset for part in PARTS]
            assert offsets(fake, 0) == order[:8]
            fake.current.reply(fake.asked("fs/writePart")[0].call_id, {})
            await fake.wait_for("fs/writePart", 9)
            fake.answers["fs/writePart"] = lambda params: {}
            fake.current.drop()
            await writing
            assert (offsets(fake, 0), offsets(fake, 1)) == (order[:9], order[1:])

    run_async(main())


def test_a_piece_that_is_refused_or_not_answered_ends_the_writing() -> None:
    def refuse(params: dict[str, int]) -> object:
        if params["offset"]:
            raise Refusal(-32603, "full")
        return {}

    async def main() -> None:
        fake = FakeServer()
        fake.answers["fs/writePart"] = refuse
        async with fake_box(fake) as box:
            with pytest.raises(RequestFailed, match="full"):
                await box.files.write_parts("/", PARTS)
            assert len(fake.asked("fs/writePart")) < len(PARTS)
        del fake.answers["fs/writePart"]
        async with fake_box(fake, QUICK.replace(request_timeout=0.1)) as box:
            with pytest.raises(WaitTimeout):
                await box.files.write_parts("/", PARTS[:1])

    run_async(main())
