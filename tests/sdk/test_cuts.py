"""Boxes whose connection is cut, or whose server dies, in the middle of work."""

from __future__ import annotations

import asyncio
import random

import pytest

from execserver_client._session import Session
from execserver_client.box import Box
from execserver_client.errors import ExecServerError, ResumeFailed, TransportClosed
from tests.conftest import LONG
from tests.sdk.boxes import QUICK, box_of, running, until
from tests.sdk.cutting_proxy import CuttingProxy, before
from tests.sdk.support import run_async
from tests.support.server_process import ServerProcess

ROUNDS = 300 if LONG else 15
CALLS = 10_000 if LONG else 1000


async def no_process_runs(box: Box) -> None:
    """Wait until the server runs no process of this box."""

    async def is_over() -> bool:
        return await running(box) == []

    await until(is_over)


def test_what_goes_through_a_process_is_neither_lost_nor_doubled_by_cuts(url: str) -> None:
    async def main() -> None:
        async with before(url) as proxy, await box_of(proxy.url).open() as box:
            process = await box.start(["cat"], pipe_stdin=True)
            received = bytearray()

            async def read() -> None:
                async for data in process.stdout:
                    received.extend(data)

            reading = asyncio.create_task(read())
            expected = bytearray()
            for number in range(ROUNDS):
                line = b"%d %s\n" % (number, b"x" * random.randrange(2000))
                expected += line
                writing = asyncio.create_task(process.write(line))
                for _ in range(random.randrange(4)):
                    await asyncio.sleep(0)
                proxy.cut()
                await writing
            await process.close_stdin()
            assert await process.wait() == 0
            await reading
            assert received == expected
            assert box.resumptions > 0

    run_async(main())


async def ran(box: Box, number: int) -> bool:
    """Run a command; return whether the connection lasted for it."""
    try:
        result = await box.run(["echo", str(number)])
    except TransportClosed:
        return False
    assert (result.exit_code, result.stdout) == (0, b"%d\n" % number)
    return True


async def cut_now_and_then(proxy: CuttingProxy) -> None:
    while True:
        await asyncio.sleep(random.uniform(0.01, 0.1))
        proxy.cut()


def test_commands_in_a_hail_of_cuts_are_whole_or_told_and_leave_no_process(url: str) -> None:
    async def main() -> None:
        async with before(url) as proxy, await box_of(proxy.url).open() as box:
            cutting = asyncio.create_task(cut_now_and_then(proxy))
            ends = await asyncio.gather(*(ran(box, number) for number in range(ROUNDS * 2)))
            cutting.cancel()
            await asyncio.gather(cutting, return_exceptions=True)
            assert len(ends) == ROUNDS * 2
            assert await ran(box, 7)
            await no_process_runs(box)

    run_async(main(), limit=600 if LONG else 45)


def test_a_server_that_dies_ends_whoever_waits_for_a_process() -> None:
    async def main(server: ServerProcess) -> None:
        box = await box_of(server.url, QUICK.replace(resume_window=0.2)).open()
        processes = [await box.start(["sleep", "600"]) for _ in range(5)]
        waiters = [asyncio.create_task(process.wait()) for process in processes]

        async def iterate() -> None:
            async for _ in processes[0]:
                pass

        reading = asyncio.create_task(iterate())
        await asyncio.sleep(0)
        server.process.kill()
        ends = await asyncio.gather(*waiters, reading, return_exceptions=True)
        assert [type(end) for end in ends] == [ResumeFailed] * 6
        with pytest.raises(ResumeFailed):
            await box.run(["true"])
        await box.aclose()

    server = ServerProcess()
    try:
        run_async(main(server))
    finally:
        server.kill()


def test_cancelled_commands_leave_no_process_and_no_call(url: str) -> None:
    async def main() -> None:
        async with await box_of(url).open() as box:
            for delay in (0.0, 0.01, 0.05):
                tasks = [asyncio.create_task(box.run(["sleep", "600"])) for _ in range(ROUNDS)]
                await asyncio.sleep(delay)
                for task in tasks:
                    task.cancel()
                ends = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(isinstance(end, asyncio.CancelledError) for end in ends)
            await no_process_runs(box)
            session: Session = box._session
            assert session._connection is not None
            assert len(session._connection._calls) == 0
            assert box._router.processes == {}

    run_async(main())


def test_calls_that_are_cancelled_in_the_middle_leave_the_connection_whole(url: str) -> None:
    async def main() -> None:
        async with await box_of(url).open() as box:
            tasks = [asyncio.create_task(box.info()) for _ in range(CALLS)]
            await tasks[CALLS // 20]  # some are answered, most are on the way
            for task in random.sample(tasks, CALLS * 9 // 10):
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert not [end for end in ends if isinstance(end, ExecServerError)]
            assert await ran(box, 1)
            assert box.resumptions == 0

    run_async(main())
