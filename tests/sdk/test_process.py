"""A process of the asyncio client: events, streams, input, and what a lost connection does to them."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from execserver.client.errors import OutputGap, ResumeFailed, StdinUnavailable, WaitTimeout
from execserver.client.rules.event_log import Closed, Exited, Output
from execserver_client._splitting import Aside
from execserver_client.box import Box
from execserver_client.process import Process
from tests.sdk.boxes import (
    QUICK,
    box_of,
    drop,
    end,
    fake_box,
    read_answer,
    say,
    until,
    with_box,
    with_process,
)
from tests.sdk.fake_server import FakeServer
from tests.sdk.support import run_async
from tests.support.cutting_proxy import CuttingProxy

ASIDE = 8 * 1024 * 1024


async def all_of(process: Process) -> list[object]:
    return [event async for event in process]


class TestEvents:
    def test_they_come_in_order_and_end_with_the_last_one(self) -> None:
        @with_process
        async def _(process: Process, fake: FakeServer) -> None:
            say(fake, 2, b"b")
            say(fake, 1, b"a")
            end(fake, 3, 7)
            assert await all_of(process) == [
                Output(1, "stdout", b"a"),
                Output(2, "stdout", b"b"),
                Exited(3, 7),
                Closed(4),
            ]
            assert (await process.next_event(), await process.wait(), process.exit_code) == (None, 7, 7)

    def test_an_event_goes_to_one_of_those_that_iterate(self) -> None:
        @with_process
        async def _(process: Process, fake: FakeServer) -> None:
            tasks = [asyncio.create_task(all_of(process)) for _ in range(3)]
            for seq in range(1, 30):
                say(fake, seq, b"%d" % seq)
            end(fake, 30)
            taken = [event for found in await asyncio.gather(*tasks) for event in found]
            assert sorted(event.seq for event in taken) == list(range(1, 32))  # type: ignore[attr-defined]

    def test_waiting_has_a_limit_and_takes_nothing(self) -> None:
        @with_process
        async def _(process: Process, fake: FakeServer) -> None:
            with pytest.raises(WaitTimeout, match=r"nothing within 0\.01 s"):
                await process.next_event(0.01)
            with pytest.raises(WaitTimeout):
                await process.wait(-1)
            say(fake, 1, b"a")
            assert await process.next_event(20) == Output(1, "stdout", b"a")

    def test_a_cancelled_step_takes_nothing(self) -> None:
        @with_process
        async def _(process: Process, fake: FakeServer) -> None:
            for step in (process.next_event(), anext(process.stdout)):
                task = asyncio.ensure_future(step)
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            say(fake, 1, b"a")
            assert await anext(process.stdout) == b"a"


class TestStreams:
    def test_each_is_read_alone_and_what_comes_on_the_other_waits(self) -> None:
        @with_process
        async def _(process: Process, fake: FakeServer) -> None:
            for seq, stream in enumerate(["stderr", "stdout", "stderr", "stdout"], 1):
                say(fake, seq, b"%d" % seq, stream)
            end(fake, 5)
            assert [data async for data in process.stdout] == [b"2", b"4"]
            assert [data async for data in process.stderr] == [b"1", b"3"]

    def test_two_tasks_read_both_at_once(self) -> None:
        @with_process
        async def _(process: Process, fake: FakeServer) -> None:
            async def collect(name: str) -> bytes:
                return b"".join([data async for data in getattr(process, name)])

            tasks = [asyncio.create_task(collect(name)) for name in ("stdout", "stderr")]
            for seq in range(1, 41):
                say(fake, seq, b"%d," % seq, "stdout" if seq % 2 else "stderr")
                await asyncio.sleep(0)
            end(fake, 41)
            out, err = await asyncio.gather(*tasks)
            assert out == b"".join(b"%d," % seq for seq in range(1, 41, 2))
            assert err == b"".join(b"%d," % seq for seq in range(2, 41, 2))

    def test_both_together_and_a_terminals_are_in_order(self) -> None:
        @with_process
        async def _(process: Process, fake: FakeServer) -> None:
            for seq, stream in enumerate(["stderr", "stdout", "pty"], 1):
                say(fake, seq, b"%d" % seq, stream)
            end(fake, 4)
            assert [data async for data in process.both] == [b"1", b"2", b"3"]

    def test_a_gap_is_told_to_the_readers_of_both(self) -> None:
        @with_process
        async def _(process: Process, fake: FakeServer) -> None:
            process.deliver_gap(1, 2, 9)
            say(fake, 3, b"out")
            say(fake, 4, b"err", "stderr")
            end(fake, 5)
            for name, data in (("stdout", b"out"), ("stderr", b"err")):
                stream = getattr(process, name)
                with pytest.raises(OutputGap, match="events 1 to 2, 9 bytes"):
                    await anext(stream)
                assert [piece async for piece in stream] == [data]

    def test_what_nobody_reads_is_bounded_and_its_loss_is_told(self) -> None:
        aside = Aside("p")
        piece = b"x" * (1 << 20)
        for seq in range(1, 21):
            aside.put(Output(seq, "stderr", piece))
        with pytest.raises(OutputGap) as gap:
            aside.take("stderr")
        assert (gap.value.first_seq, gap.value.lost_bytes) == (1, gap.value.last_seq * len(piece))
        taken = 0
        while aside.has("stderr"):
            taken += len(aside.take("stderr"))
        assert taken + (gap.value.lost_bytes or 0) == 20 * len(piece)
        assert ASIDE - 2 * len(piece) < taken <= ASIDE


class TestAfterALoss:
    def test_it_catches_up_from_its_last_event(self) -> None:
        @with_process
        async def _(process: Process, fake: FakeServer) -> None:
            fake.answers["process/read"] = lambda params: read_answer([(2, b"b"), (3, b"c")], 4)
            say(fake, 1, b"a")
            assert await process.next_event(20) == Output(1, "stdout", b"a")
            await drop(fake)
            assert [await process.next_event(20) for _ in range(2)] == [
                Output(2, "stdout", b"b"),
                Output(3, "stdout", b"c"),
            ]
            assert fake.asked("process/read")[0].params["afterSeq"] == 1

    def test_what_is_gone_is_raised_at_its_place_and_iteration_goes_on(self) -> None:
        @with_process
        async def _(process: Process, fake: FakeServer) -> None:
            fake.answers["process/read"] = lambda params: read_answer([(9, b"z")], 10)
            say(fake, 1, b"a")
            await drop(fake)
            assert await process.next_event(20) == Output(1, "stdout", b"a")
            with pytest.raises(OutputGap) as gap:
                await process.next_event(20)
            assert (gap.value.first_seq, gap.value.last_seq) == (2, 8)
            assert await process.next_event(20) == Output(9, "stdout", b"z")

    def test_an_end_that_was_missed_is_made_up_for(self) -> None:
        @with_process
        async def _(process: Process, fake: FakeServer) -> None:
            fake.answers["process/read"] = lambda params: read_answer(
                [(1, b"a")], 4, exit_code=9, closed=True
            )
            await drop(fake)
            assert await all_of(process) == [Output(1, "stdout", b"a"), Exited(2, 9, False), Closed(3)]

    def test_input_is_sent_again_under_its_old_write_id(self) -> None:
        @with_process
        async def _(process: Process, fake: FakeServer) -> None:
            fake.answers["process/read"] = lambda params: read_answer([], 1)
            writing = asyncio.create_task(process.write(b"data"))
            await fake.wait_for("process/write")
            fake.answers["process/write"] = lambda params: {"status": "accepted"}
            fake.current.drop()
            await writing
            await process.write(b"more")
            first, again, more = (request.params for request in fake.asked("process/write"))
            assert first == again
            assert more["writeId"] != first["writeId"]

    def test_a_session_that_is_gone_ends_iteration_with_its_reason(self) -> None:
        async def main() -> None:
            fake = FakeServer()
            async with fake_box(fake, QUICK.replace(resume_window=0.02)) as box:
                process = await box.start(["cat"], process_id="p")
                say(fake, 1, b"a")
                assert await process.next_event(20) == Output(1, "stdout", b"a")
                fake.unreachable = True
                fake.current.drop()
                for _ in range(2):
                    with pytest.raises(ResumeFailed):
                        await process.next_event(20)
                with pytest.raises(ResumeFailed):
                    await process.wait(20)

        run_async(main())

    def test_nothing_of_a_real_process_is_lost_or_doubled(self, url: str) -> None:
        async def echo(box: Box, proxy: CuttingProxy) -> None:
            sent, got = bytearray(), bytearray()
            process = await box.start(["cat"], pipe_stdin=True)

            async def read() -> None:
                async for data in process.stdout:
                    got.extend(data)

            reading = asyncio.create_task(read())
            for number in range(60):
                piece = b"%06d\n" % number * 500
                sent.extend(piece)
                if number % 12 == 6:
                    asyncio.get_running_loop().call_soon(proxy.cut)
                await process.write(piece)
            await process.close_stdin()
            await reading
            assert got == sent
            assert box.resumptions > 0
            assert await process.wait() == 0

        async def main(proxy: CuttingProxy) -> None:
            async with await box_of(proxy.url).open() as box:
                await echo(box, proxy)
            proxy.cut()  # it closes its ends only then

        proxy = CuttingProxy(url)
        try:
            run_async(main(proxy))
        finally:
            proxy.stop()


class TestInput:
    def test_it_arrives_byte_for_byte_and_ends(self, url: str) -> None:
        async def use(box: Box) -> None:
            data = bytes(range(256)) * 8192 + b"end"
            process = await box.start(["sha256sum"], pipe_stdin=True)
            found = await process.communicate(data)
            assert found.stdout == (await box.run(["sha256sum"], input=data)).stdout
            assert (found.exit_code, found.stderr, len(found.stdout)) == (0, b"", 68)

        with_box(url, use)

    def test_a_process_without_input_says_so(self, url: str) -> None:
        async def use(box: Box) -> None:
            process = await box.start(["sleep", "60"])
            with pytest.raises(StdinUnavailable) as error:
                await process.write(b"x")
            assert "pipe_stdin" in str(error.value.hint)

        with_box(url, use)

    def test_one_that_ends_before_it_has_read_all_is_no_error(self, url: str) -> None:
        async def use(box: Box) -> None:
            process = await box.start(["head", "-c", "3"], pipe_stdin=True)
            assert (await process.communicate(b"abc" * 1_000_000)).stdout == b"abc"

        with_box(url, use)

    def test_what_is_no_bytes_is_refused_before_anybody_waits(self, url: str) -> None:
        async def use(box: Box) -> None:
            process = await box.start(["cat"], pipe_stdin=True)
            with pytest.raises(TypeError):
                await process.communicate("text")  # type: ignore[arg-type]

        with_box(url, use)


def test_a_terminal_has_a_size_and_one_stream(url: str) -> None:
    async def use(box: Box) -> None:
        async with await box.start(["sh", "-c", "read x; stty size"], tty=True) as process:
            await process.resize(41, 97)
            await process.write(b"\n")
            text = b"".join([data async for data in process.stdout])
            assert b"41 97" in text
            assert await process.wait() == 0

    with_box(url, use)


def test_signals_reach_the_group_and_a_read_is_apart_from_iteration(url: str) -> None:
    async def use(box: Box) -> None:
        process = await box.start(
            ["sh", "-c", "trap 'echo got; exit 5' TERM; echo up; while :; do sleep 0.1; done"]
        )
        state = await process.read(wait=20)
        assert b"".join(chunk.data for chunk in state.chunks) == b"up\n"
        await process.signal("TERM")
        assert (await process.communicate()).stdout == b"up\ngot\n"
        assert (await process.wait(), await process.terminate()) == (5, False)

    with_box(url, use)


def test_leaving_the_block_kills_it_also_when_its_task_is_cancelled(url: str) -> None:
    async def use(box: Box) -> None:
        async with await box.start(["sleep", "60"]) as process:
            assert not process.finished
        assert process.exit_code == 137
        inside = asyncio.Event()
        handles: list[Process] = []

        async def hold() -> None:
            async with await box.start(["sleep", "60"]) as held:
                handles.append(held)
                inside.set()
                await held.wait()

        task = asyncio.create_task(hold())
        await inside.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert await handles[0].wait(20) == 137

    with_box(url, use)


def test_a_consumer_that_stops_stops_the_process_and_loses_nothing(url: str) -> None:
    options = QUICK.replace(max_unread_bytes=100_000, max_unread_bytes_while_waiting=400_000)
    size = 30_000_000

    async def main() -> None:
        async with await box_of(url, options).open() as box:
            process = await box.start(["head", "-c", str(size), "/dev/zero"])
            first = await process.next_event()
            assert isinstance(first, Output)

            async def is_full() -> bool:
                return process._known.held > options.max_unread_bytes

            await until(is_full)
            for _ in range(100):  # turns in which everything that is let in comes in
                await asyncio.sleep(0)
            assert process._known.held < 1_500_000
            assert process.exit_code is None  # it blocks in its write
            rest = [event async for event in process if isinstance(event, Output)]
            assert len(first.data) + sum(len(event.data) for event in rest) == size

    run_async(main())


def test_one_that_waits_for_something_else_is_not_blocked_by_a_full_process(url: str) -> None:
    options = QUICK.replace(max_unread_bytes=100_000, max_unread_bytes_while_waiting=2_000_000)

    async def main() -> None:
        async with await box_of(url, options).open() as box:
            flood = await box.start(["head", "-c", "10000000", "/dev/zero"])
            await flood.next_event()
            assert (await box.run(["echo", "through"])).text == "through\n"
            lost = 0
            taken = 0
            while True:
                try:
                    event = await flood.next_event()
                except OutputGap as gap:
                    lost += gap.lost_bytes or 0
                    continue
                if event is None:
                    break
                taken += len(event.data) if isinstance(event, Output) else 0
            # The first piece was taken before.
            assert 0 < 10_000_000 - taken - lost <= 1_000_000

    run_async(main())
