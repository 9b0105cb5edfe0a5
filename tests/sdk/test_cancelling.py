"""What is cancelled at the asyncio client ends on the box, too, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from execserver_client.box import Box
from execserver_client.errors import InvalidRequestError, TransportClosed
from execserver_client.process import Process
from tests.sdk.boxes import fake_box, nothing_runs, running, until, with_box
from tests.sdk.fake_server import FakeServer, Refusal
from tests.sdk.support import run_async


def _cancel_many(url: str, count: int) -> None:
    """Cancel calls of every kind, fifty at a time; `with_box` looks for what is left of them."""

    async def use(box: Box) -> None:
        held = await box.start(["cat"], pipe_stdin=True)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: box.run(["sleep", "60"], input="x"),
            lambda: box.run(["yes"]),
            lambda: box.start(["sleep", "60"]),
            lambda: held.write(b"x" * 100_000),
            lambda: held.next_event(),
            lambda: box.info(),
            lambda: held.read(wait=30),
        ]

        async def no_errand_is_left() -> bool:
            return len(box._errands._tasks) == 0

        async def cancelled(number: int) -> None:
            task = asyncio.ensure_future(calls[number % len(calls)]())
            for _ in range(number % 53):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                found = await task
                if isinstance(found, Process):
                    await found.aclose()

        for first in range(0, count, 50):
            await asyncio.gather(*map(cancelled, range(first, first + 50)))
        await held.aclose()
        await until(lambda: nothing_runs(box), limit=120.0)  # kills that wait for their turn come first
        await until(no_errand_is_left)  # the answer to the last kill may come behind the end of its process

    with_box(url, use, limit=300.0)


class TestCancelling:
    def test_a_cancelled_run_ends_the_process(self, url: str) -> None:
        async def use(box: Box) -> None:
            task = asyncio.create_task(box.run(["sleep", "60"]))

            async def is_there() -> bool:
                return bool(await running(box))

            await until(is_there)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: nothing_runs(box))

        with_box(url, use)

    def test_at_any_moment_nothing_is_left(self, url: str) -> None:
        async def use(box: Box) -> None:
            for turns in range(40):
                task = asyncio.create_task(box.run(["sleep", "60"], input="x"))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            await until(lambda: nothing_runs(box))
            assert (await box.run(["echo", "fine"])).text == "fine\n"

        with_box(url, use)

    def test_after_many_cancelled_calls_nothing_is_left(self, url: str) -> None:
        _cancel_many(url, 200)

    @pytest.mark.long
    def test_after_ten_thousand_cancelled_calls_nothing_is_left(self, url: str) -> None:
        _cancel_many(url, 10_000)

    def test_before_the_answer_to_the_start_the_process_is_killed_by_its_id(self) -> None:
        async def main() -> None:
            fake = FakeServer()
            async with fake_box(fake) as box:
                del fake.answers["process/start"]
                task = asyncio.create_task(box.start(["sleep", "60"]))
                started = await fake.wait_for("process/start")
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                killed = await fake.wait_for("process/terminate")
                assert killed.params["processId"] == started.params["processId"]
                assert box._router.processes == {}

        run_async(main())

    def test_a_start_whose_answer_was_lost_is_killed_after_the_resume(self) -> None:
        async def main() -> None:
            fake = FakeServer()
            async with fake_box(fake) as box:
                del fake.answers["process/start"]
                task = asyncio.create_task(box.start(["sleep", "60"]))
                started = await fake.wait_for("process/start")
                fake.current.drop()
                with pytest.raises(TransportClosed):
                    await task
                killed = await fake.wait_for("process/terminate")
                assert (killed.connection, killed.params) == (1, {"processId": started.params["processId"]})

        run_async(main())

    def test_one_that_asks_for_the_id_of_a_living_process_kills_nothing(self) -> None:
        async def main() -> None:
            fake = FakeServer()
            async with fake_box(fake) as box:
                first = await box.start(["cat"], process_id="p")
                del fake.answers["process/start"]
                task = asyncio.create_task(box.start(["cat"], process_id="p"))
                await fake.wait_for("process/start", 2)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert box._router.processes == {"p": first}
                assert fake.asked("process/terminate") == []

        run_async(main())

    def test_a_refused_start_leaves_the_process_that_had_its_id(self) -> None:
        async def main() -> None:
            fake = FakeServer()
            async with fake_box(fake) as box:
                first = await box.start(["cat"], process_id="p")

                def refuse(params: object) -> object:
                    raise Refusal(-32600, "taken")

                fake.answers["process/start"] = refuse
                with pytest.raises(InvalidRequestError):
                    await box.start(["cat"], process_id="p")
                assert box._router.processes == {"p": first}
                assert fake.asked("process/terminate") == []

        run_async(main())
