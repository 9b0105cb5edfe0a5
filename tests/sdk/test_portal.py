"""The thread of the blocking clients: when it lives, and how calls, interruptions and forks go through it."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from execserver_client.sync._loop_thread import ClientClosed
from execserver_client.sync._portal import Portal
from tests.support.source import ROOT
from tests.support.waiting import wait_until

NAME = "execserver-client"


def living() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == NAME]


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal()
    yield portal
    portal.close()
    assert living() == []


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_calls_of_several_threads_go_on_side_by_side(portal: Portal) -> None:
    event = portal.run(asyncio.Event)

    async def waiting() -> str:
        await event.wait()
        return "seen"

    async def setting() -> int:
        event.set()
        return threading.get_ident()

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(portal.call, waiting)
        ident = threads.submit(portal.call, setting).result()
        assert first.result() == "seen"
    assert ident != threading.get_ident()
    assert portal.call(double, number=4) == 8


def test_an_error_reaches_the_caller_and_is_freed_with_it(portal: Portal) -> None:
    class Refused(Exception):
        pass

    async def failing() -> None:
        raise Refused("no")

    gc.disable()
    try:
        with pytest.raises(Refused, match="no") as caught:
            portal.call(failing)
        seen = weakref.ref(caught.value)
        del caught
        portal.call(double, 1)  # the loop has let go of the task, too
        assert seen() is None
    finally:
        gc.enable()


def test_the_thread_lives_from_the_first_client_to_the_last() -> None:
    assert living() == []
    first, second = Portal(), Portal()
    assert living() == [NAME]
    first.close()
    first.close()
    with pytest.raises(ClientClosed, match="connect again"):
        first.call(double, 1)
    assert second.call(double, 1) == 2
    second.close()
    assert living() == []


def test_closing_closes_what_was_adopted_and_ends_calls_that_wait() -> None:
    portal = Portal()
    closed: list[str] = []
    started = threading.Event()

    async def closing() -> None:
        closed.append("closed")

    async def waiting() -> None:
        started.set()
        await asyncio.Event().wait()

    portal.adopt(closing)
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(portal.call, waiting)
        started.wait()
        portal.close()
        with pytest.raises(ClientClosed, match="during the call"):
            call.result()
    assert (closed, living()) == (["closed"], [])


def test_a_client_that_nobody_has_any_more_is_closed() -> None:
    portal = Portal()
    closed = threading.Event()

    async def closing() -> None:
        closed.set()

    portal.adopt(closing)
    del portal
    assert closed.wait(20)
    wait_until(lambda: living() == [])


def test_an_interruption_cancels_the_call_and_waits_for_its_cleaning(portal: Portal) -> None:
    main = threading.get_ident()
    seen: list[str] = []

    async def interrupted() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            seen.append("cleaned")

    with pytest.raises(KeyboardInterrupt):
        portal.call(interrupted)
    assert seen == ["cleaned"]
    assert portal.call(double, 3) == 6


def test_a_callback_cannot_wait_for_its_own_loop(portal: Portal) -> None:
    with pytest.raises(RuntimeError, match="no blocking calls"):
        portal.run(lambda: portal.call(double, 1))


def script(text: str) -> str:
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'sdk')!r}]\n" + text
    done = subprocess.run(
        [sys.executable, "-I", "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_forked_child_gets_a_thread_of_its_own() -> None:
    text = """
import os
from execserver_client.sync._loop_thread import ForkedClient
from execserver_client.sync._portal import Portal
async def who(): return os.getpid()
old = Portal()
assert old.call(who) == os.getpid()
child = os.fork()
if child == 0:
    try:
        old.call(who)
    except ForkedClient as error:
        assert "connect again" in str(error)
        new = Portal()
        assert new.call(who) == os.getpid()
        old.close()
        new.close()
        sys.exit(7)
status = os.waitpid(child, 0)[1]
assert old.call(who) == os.getpid()
old.close()
print(os.waitstatus_to_exitcode(status))
"""
    assert script(text) == "7\n"


def test_the_end_of_the_process_cancels_what_still_goes_on() -> None:
    text = """
import asyncio, threading
from execserver_client.sync._portal import Portal
from execserver_client.sync._loop_thread import ClientClosed
started = threading.Event()
def calling():
    try:
        portal.call(waiting)
    except ClientClosed:
        pass
async def waiting():
    try:
        started.set()
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        print("cleaned", flush=True)
portal = Portal()
threading.Thread(target=calling, daemon=True).start()
started.wait()
"""
    assert script(text) == "cleaned\n"
