"""Who reads slowly while others wait: threads of a blocking client, and main tasks of one runner."""

from __future__ import annotations

import asyncio
import threading
from contextvars import Context

from execserver_client import ConnectOptions, Output
from execserver_client.sync import connect
from execserver_client.sync._callers import calling_thread
from tests.sdk.boxes import box_of

SMALL = ConnectOptions(max_unread_bytes=100_000, max_unread_bytes_while_waiting=300_000)
SIZE = 5_000_000


def test_a_thread_is_one_caller_until_it_ends() -> None:
    others = []
    thread = threading.Thread(target=lambda: others.append(calling_thread()))
    thread.start()
    thread.join()
    assert calling_thread() is calling_thread()
    assert calling_thread() is not others[0]
    assert not calling_thread().done()
    assert others[0].done()


def test_a_thread_that_reads_slowly_loses_nothing_while_another_waits(url: str) -> None:
    with connect(url, options=SMALL) as box:
        quiet = box.start(["sleep", "600"])
        loud = box.start(["head", "-c", str(SIZE), "/dev/zero"])
        events = iter(loud)
        first = next(events)
        assert isinstance(first, Output)
        waiting = {"processId": quiet.process_id, "waitMs": 500}
        other = threading.Thread(target=box.call, args=("process/read", waiting))
        other.start()
        other.join(0.4)  # the reader reads nothing meanwhile
        rest = [event.data for event in events if isinstance(event, Output)]
        assert len(first.data) + sum(map(len, rest)) == SIZE
        other.join()


def test_a_later_main_task_of_a_runner_that_reads_slowly_loses_nothing_while_another_waits(url: str) -> None:
    with asyncio.Runner() as runner:
        box = runner.run(box_of(url, SMALL).open())

        async def read_first() -> None:
            async with await box.start(["echo", "x"]) as process:
                assert [data async for data in process.stdout] == [b"x\n"]

        async def read_slowly() -> int:
            quiet = await box.start(["sleep", "600"])
            loud = await box.start(["head", "-c", str(SIZE), "/dev/zero"])
            first = await anext(loud)
            assert isinstance(first, Output)
            waiting = box.call("process/read", {"processId": quiet.process_id, "waitMs": 500})
            other = asyncio.create_task(waiting, context=Context())
            await asyncio.sleep(0.4)  # the reader reads nothing meanwhile
            rest = [event.data async for event in loud if isinstance(event, Output)]
            await other
            return len(first.data) + sum(map(len, rest))

        try:
            runner.run(read_first())
            assert runner.run(read_slowly()) == SIZE
        finally:
            runner.run(box.aclose())
