"""The daemon thread with an event loop in which the blocking clients of a process live.

It starts with the first client and ends with the last one, or with the process.  A forked child has no such
thread: old clients are refused there, new ones get a new one.  It keeps the old loop's descriptors, since
closing that loop would take its sockets out of the epoll set that it shares with its parent.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeAlias, TypeVar

from execserver.client.errors import ExecServerError

T = TypeVar("T")
Closing: TypeAlias = Callable[[], Coroutine[Any, Any, object]]

# How long a cancelled call may clean up, e.g. kill what it has started, before its caller goes on.
CLEANING_S = 5.0
# How long the clients that are left may take to close when the thread is to end.
ENDING_S = 5.0


class ClientClosed(ExecServerError):
    """The client that this belongs to has been closed."""


class ForkedClient(ExecServerError):
    """The client was made before this process was forked; connect again in the child."""


class LoopThread:
    """One thread and its loop."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()  # taken again where a garbage collection in it frees a client
        self._ended = False
        started: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]
        started = concurrent.futures.Future()
        self._thread = threading.Thread(target=_serve, args=(started,), name="execserver-client", daemon=True)
        self._thread.start()
        self._loop, self._stop = started.result()

    def is_ours(self) -> bool:
        """Tell whether this process made the thread, not one that it was forked from."""
        return self._pid == os.getpid()

    def call(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Carry out a coroutine function and return its result, or raise its error."""
        if not self.is_ours():
            raise ForkedClient(
                "this client was made before the process was forked; connect again in the child"
            )
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError("a callback must make no blocking calls: it can hand over to another thread")
        call = _Call(function)
        outcome = call.outcome
        try:
            self._start(call)
            return outcome.result()
        except asyncio.CancelledError:
            raise ClientClosed("the client was closed during the call") from None
        except BaseException:
            # Unless it is the call's own error, its beginning or the waiting was interrupted.
            if not outcome.done() and self._tell(call.cancel):
                concurrent.futures.wait([outcome], CLEANING_S)
            raise
        finally:
            del call, outcome  # they hold the error, whose traceback holds this frame

    def begin(self, function: Callable[[], Coroutine[Any, Any, T]]) -> _Call[T]:
        """Start a coroutine function without waiting for it; raise ClientClosed after the end."""
        call = _Call(function)
        self._start(call)
        return call

    def end(self, *, wait: bool) -> None:
        """Stop the loop: what is still going on in it is cancelled."""
        with self._lock:
            if self._tell(self._stop.set):
                self._ended = True
        if wait and threading.get_ident() != self._thread.ident:
            self._thread.join(ENDING_S)

    def _start(self, call: _Call[Any]) -> None:
        if not self._tell(call.start):
            raise ClientClosed("this client is closed; connect again")

    def _tell(self, callback: Callable[[], object]) -> bool:
        """Have the loop call something, in the order of telling; False after the end."""
        with self._lock:
            if not self._ended:
                self._loop.call_soon_threadsafe(callback)
            return not self._ended


class _Call(Generic[T]):
    """One coroutine in the loop, and what it has become."""

    def __init__(self, function: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._function = function
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        """Begin it, in the loop."""
        self._task = asyncio.get_running_loop().create_task(self._function())
        self._task.add_done_callback(self._done)

    def cancel(self) -> None:
        """Cancel it, in the loop, if it has begun; unless it has ended."""
        if self._task is not None:
            self._task.cancel()
        elif not self.outcome.done():
            self.outcome.set_exception(asyncio.CancelledError())

    def _done(self, task: asyncio.Task[T]) -> None:
        self._task = None
        if task.cancelled():
            self.outcome.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())


class Threads:
    """The one thread of this process, and how many clients it has."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._current: LoopThread | None = None
        self._leases = 0
        self._of_our_parents: list[LoopThread] = []
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self._end)

    def lease(self) -> LoopThread:
        """Return the thread, started if need be, and count one more client."""
        with self._lock:
            if self._current is None:
                self._current, self._leases = LoopThread(), 0
            self._leases += 1
            return self._current

    def give_back(self, thread: LoopThread, *, wait: bool) -> None:
        """Count one client less; without any the thread ends."""
        with self._lock:
            if thread is not self._current:
                return
            self._leases -= 1
            if self._leases:
                return
            self._current = None
        thread.end(wait=wait)

    def abandon(self, thread: LoopThread, closing: Closing | None) -> None:
        """Close a client that nobody has any more, without waiting for it."""
        try:
            if closing is None:
                self.give_back(thread, wait=False)
            else:
                ended = thread.begin(closing).outcome
                ended.add_done_callback(lambda _: self.give_back(thread, wait=False))
        except ClientClosed:
            pass  # the thread has ended before, with the process

    def _end(self) -> None:
        with self._lock:
            thread, self._current = self._current, None
        if thread is not None:
            thread.end(wait=True)

    def _forget(self) -> None:
        """Start anew in a forked child, whose copy of the lock may be held by a thread that it lacks."""
        self._lock = threading.RLock()
        if self._current is not None:
            self._of_our_parents.append(self._current)
        self._current = None


def _serve(
    started: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]],
) -> None:
    async def serving() -> None:
        stop = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()

    try:
        with asyncio.Runner() as runner:
            runner.run(serving())
    except OSError as error:  # no descriptors are left for a loop
        if started.done():
            raise
        started.set_exception(error)


THREADS = Threads()
