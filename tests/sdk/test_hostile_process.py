"""What a server may say about a process to break its client harms that process or that connection only."""

from __future__ import annotations

import asyncio

import pytest

from execserver.client.errors import OutputGap, ProtocolViolation, TransportClosed
from execserver.client.rules.event_log import Closed, Exited, Output
from execserver_client.process import Process
from tests.sdk.boxes import QUICK, drop, end, fake_box, read_answer, say, with_process
from tests.sdk.fake_server import FakeServer
from tests.sdk.support import run_async


def test_events_that_come_twice_or_behind_the_last_one_change_nothing() -> None:
    @with_process
    async def _(process: Process, fake: FakeServer) -> None:
        for seq in (1, 1, 0, 2, 1):
            say(fake, seq, b"%d" % seq)
        fake.current.push("process/exited", processId="p", seq=3, exitCode=1)
        fake.current.push("process/exited", processId="p", seq=4, exitCode=2)
        fake.current.push("process/closed", processId="p", seq=4)
        say(fake, 5, b"late")
        found = [event async for event in process]
        assert found == [Output(1, "stdout", b"1"), Output(2, "stdout", b"2"), Exited(3, 1), Closed(4)]
        assert await process.wait() == 1


def test_events_of_unknown_processes_are_ignored() -> None:
    @with_process
    async def _(process: Process, fake: FakeServer) -> None:
        fake.current.push("process/output", processId="q\x1b[2J", seq=1, stream="stdout", chunk="eA==")
        fake.current.push("process/closed", processId="", seq=1)
        end(fake, 1)
        assert await process.wait(20) == 0


@pytest.mark.parametrize(
    "params",
    [
        {"seq": -1, "stream": "stdout", "chunk": "eA=="},
        {"seq": 1, "stream": "other", "chunk": "eA=="},
        {"seq": 1, "stream": "stdout", "chunk": "no base64!"},
        {"seq": "1", "stream": "stdout", "chunk": "eA=="},
        {},
    ],
)
def test_what_is_no_event_ends_the_connection_and_the_process_goes_on_with_the_next(
    params: dict[str, object],
) -> None:
    @with_process
    async def _(process: Process, fake: FakeServer) -> None:
        fake.answers["process/read"] = lambda params: read_answer([(1, b"a")], 2)
        fake.current.push("process/output", processId="p", **params)
        assert await process.next_event(20) == Output(1, "stdout", b"a")
        assert len(fake.carriers) == 2


@pytest.mark.parametrize("answer", [{}, {"chunks": 3}, {**read_answer([], 1), "nextSeq": -1}, [], "x"])
def test_a_catch_up_that_makes_no_sense_fails_that_process_only(answer: object) -> None:
    async def main() -> None:
        fake = FakeServer()
        async with fake_box(fake) as box:
            bad = await box.start(["cat"], process_id="p")
            good = await box.start(["cat"], process_id="q")
            fake.answers["process/read"] = lambda params: (
                answer if params["processId"] == "p" else read_answer([(1, b"a")], 2)
            )
            await drop(fake)
            assert await good.next_event(20) == Output(1, "stdout", b"a")
            with pytest.raises(ProtocolViolation):
                await bad.next_event(20)
            with pytest.raises(ProtocolViolation):
                await bad.wait(20)

    run_async(main())


def test_events_held_back_for_a_missing_one_are_bounded_and_their_loss_is_told() -> None:
    async def main() -> None:
        fake = FakeServer()
        options = QUICK.replace(max_unread_bytes=20_000, max_unread_bytes_while_waiting=50_000)
        async with fake_box(fake, options) as box:
            process = await box.start(["cat"], process_id="p")
            waiting = asyncio.create_task(process.next_event(20))
            for seq in range(2, 300):  # the first never comes
                say(fake, seq, b"x" * 1000)
            with pytest.raises(OutputGap) as gap:
                await waiting
            assert gap.value.first_seq == 1
            assert process._known.held <= 50_000

    run_async(main())


def test_a_process_ends_with_its_session_while_several_wait() -> None:
    @with_process
    async def _(process: Process, fake: FakeServer) -> None:
        waits = [asyncio.create_task(each) for each in (process.wait(), process.read(wait=30))]
        waits += [asyncio.create_task(anext(process.stdout)), asyncio.create_task(process.write(b"x"))]
        await fake.wait_for("process/write")
        await process._session.close()
        for each in waits:
            with pytest.raises(TransportClosed):
                await each
