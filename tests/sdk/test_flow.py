"""When the asyncio client stops reading."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextvars import Context

import pytest

from execserver_client import _flow
from execserver_client._flow import Gate, Inlet, caller, party
from tests.sdk.support import run_async


class Thread:
    """A party that is no task."""

    def done(self) -> bool:
        return False


def test_reading_stops_above_the_limit_while_nobody_waits() -> None:
    async def main() -> None:
        gate, inlet = Gate(10, 100), Inlet()
        gate.update(inlet, 10)
        assert not gate.must_stop()
        gate.update(inlet, 11)
        assert gate.must_stop()
        gate.update(inlet, 10)
        assert not gate.must_stop()

    run_async(main())


def test_reading_goes_on_while_somebody_waits_and_nobody_else_reads() -> None:
    async def main() -> None:
        gate, inlet = Gate(10, 100), Inlet()
        gate.update(inlet, 11)
        with gate.waiting():
            assert not gate.must_stop()
        inlet.read_by_caller()
        with gate.waiting(), gate.waiting():  # the reader himself waits
            assert not gate.must_stop()
        assert gate.must_stop()
        assert gate._waiting == {}

    run_async(main())


def test_a_reader_that_goes_on_lets_others_wait() -> None:
    async def main() -> None:
        gate, inlet, leave = Gate(10, 100), Inlet(), asyncio.Event()

        async def read() -> None:
            inlet.read_by_caller()
            await leave.wait()

        reader = asyncio.create_task(read())
        await asyncio.sleep(0)
        gate.update(inlet, 11)
        with gate.waiting():
            assert gate.must_stop()
            leave.set()
            await reader
            assert not gate.must_stop()  # he has ended and will read nothing more

    run_async(main())


def test_the_reader_of_a_connection_is_held_back_and_let_go() -> None:
    async def main() -> None:
        gate, inlet = Gate(10, 100), Inlet()
        gate.update(inlet, 11)
        assert gate.is_due()
        held = asyncio.create_task(gate.hold_back())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not held.done()
        gate.update(inlet, 0)
        await held

    run_async(main())


def test_others_run_now_and_then_in_any_case() -> None:
    async def main() -> None:
        gate = Gate(10, 100)
        assert sum(gate.is_due() for _ in range(320)) == 10

    run_async(main())


def test_who_works_for_a_thread_is_that_thread() -> None:
    async def main() -> None:
        gate, inlet, thread = Gate(10, 100), Inlet(), Thread()
        assert party() is asyncio.current_task()

        async def read() -> None:
            caller.set(thread)
            inlet.read_by_caller()

        await asyncio.create_task(read())
        gate.update(inlet, 11)
        assert inlet.reader is thread
        with gate.waiting():
            assert gate.must_stop()

    run_async(main())


def test_who_awaits_a_task_of_his_own_is_not_waited_for() -> None:
    """As with `gather`, and `wait_for` of older Pythons: the reader goes on when the task has its answer."""

    async def main() -> None:
        gate, inlet = Gate(10, 100), Inlet()

        async def call() -> bool:
            with gate.waiting():
                return gate.must_stop()

        inlet.read_by_caller()
        gate.update(inlet, 11)
        (stopped,) = await asyncio.gather(call())
        assert not stopped
        assert gate.must_stop()

    run_async(main())


def test_a_reader_that_takes_nothing_for_long_holds_up_nobody_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_flow, "RECHECK_SECONDS", 0.001)

    async def main() -> None:
        gate, inlet, begun = Gate(10, 100), Inlet(), asyncio.Event()

        async def call() -> None:
            with gate.waiting():
                begun.set()
                await gate.hold_back()

        other = asyncio.create_task(call())  # made before this task reads: it may be anybody's
        await begun.wait()
        inlet.read_by_caller()
        gate.update(inlet, 20)
        await other
        stalled = inlet.is_stalled
        gate.update(inlet, 19)  # it goes on
        assert (stalled, inlet.is_stalled, gate.must_stop()) == (True, False, True)

    run_async(main())


def test_a_task_that_has_read_is_freed_without_the_collector() -> None:
    async def main() -> None:
        inlet = Inlet()

        async def read() -> None:
            inlet.read_by_caller()

        task = asyncio.create_task(read())
        await task
        found = weakref.ref(task)
        gc.disable()
        try:
            del task
            await asyncio.sleep(0)
            assert (found(), inlet.reader) == (None, None)
        finally:
            gc.enable()

    run_async(main())


def test_who_reads_in_a_runner_after_another_main_task_is_read_for() -> None:
    """The main tasks of a runner share one context, in which the one that has ended was noted."""

    async def read(inlet: Inlet) -> None:
        inlet.read_by_caller()

    async def read_on(inlet: Inlet) -> tuple[bool, bool]:
        gate = Gate(10, 100)
        gate.update(inlet, 11)
        await read(inlet)
        other = asyncio.create_task(stops(gate), context=Context())
        return await other, await asyncio.create_task(stops(gate))

    async def stops(gate: Gate) -> bool:
        with gate.waiting():
            return gate.must_stop()

    with asyncio.Runner() as runner:
        runner.run(read(Inlet()))
        assert runner.run(read_on(Inlet())) == (True, False)


def test_a_task_that_outlives_the_reader_that_made_it_reads_for_itself() -> None:
    async def main() -> None:
        gate, inlet, go_on, leave = Gate(10, 100), Inlet(), asyncio.Event(), asyncio.Event()

        async def made() -> asyncio.Task[None]:
            Inlet().read_by_caller()
            return asyncio.create_task(outliving())

        async def outliving() -> None:
            await go_on.wait()
            inlet.read_by_caller()
            await leave.wait()

        maker = asyncio.create_task(made())
        reader = await maker
        del maker
        go_on.set()
        await asyncio.sleep(0)
        gate.update(inlet, 11)
        with gate.waiting():
            assert gate.must_stop()
        leave.set()
        await reader

    run_async(main())


def test_who_waits_in_a_runner_after_another_main_task_waits_for_himself() -> None:
    async def read() -> None:
        Inlet().read_by_caller()

    async def waits() -> bool:
        return party() is asyncio.current_task()

    with asyncio.Runner() as runner:
        runner.run(read())
        assert runner.run(waits())
