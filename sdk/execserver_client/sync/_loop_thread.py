"""The daemon thread with an event loop in which the blocking clients of a process live.

It starts with the first client and ends with the last one, or with the process.  A forked child has no such
thread: old clients are refused there, new ones get a new one.  It keeps the old loop's descriptors, since
closing that loop would take its sockets out of the epoll set that it shares with its parent.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeAlias, TypeVar

from execserver.client.errors import ExecServerError
from execserver_client._flow import caller
from execserver_client.sync._callers import calling_thread

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
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_serve, args=(self._loop,), name="execserver-client", daemon=True
        )
        self._thread.start()

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
        try:
            self._start(call)
            call.done.acquire()
            return call.result()
        except asyncio.CancelledError:
            raise ClientClosed("the client was closed during the call") from None
        except BaseException:
            # Unless it is the call's own error, its beginning or the waiting was interrupted.
            if not call.has_ended and self._tell(call.cancel):
                call.done.acquire(timeout=CLEANING_S)
            raise
        finally:
            del call  # it holds the error, whose traceback holds this frame

    def begin(self, function: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Start a coroutine function without waiting for it; raise ClientClosed after the end."""
        self._start(_Call(function))

    def end(self, *, wait: bool) -> None:
        """Stop the loop: what is still going on in it is cancelled."""
        with self._lock:
            if self._tell(self._loop.stop):
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
    """One coroutine in the loop, and what it has become.

    The loop only ever releases a lock, so nothing that interrupts a waiting caller can stop it.  A Future of
    `concurrent.futures` would not do: interrupted while it enters its condition, a caller keeps that locked.
    """

    def __init__(self, function: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.done = threading.Lock()
        self.done.acquire()
        self.has_ended = False
        self._function = function
        self._caller = calling_thread()
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        """Begin it, in the loop."""
        caller.set(self._caller)  # in the context of this callback, which the task inherits
        self._task = asyncio.get_running_loop().create_task(self._function())
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        """Cancel it, in the loop, unless it has ended."""
        if self._task is None:
            self._end(None)  # interrupted before its beginning was told
        else:
            self._task.cancel()

    def result(self) -> T:
        """Return its result, or raise its error, once."""
        task, self._task = self._task, None
        if task is None:
            raise asyncio.CancelledError
        try:
            return task.result()
        finally:
            del task, self  # the error's traceback holds this frame

    def _end(self, _: object) -> None:
        self.has_ended = True
        self.done.release()


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

        async def ending() -> None:
            try:
                if closing is not None:
                    await closing()
            finally:
                self.give_back(thread, wait=False)

        try:
            thread.begin(ending)
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


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(_clean_up(loop))
    finally:
        loop.close()


async def _clean_up(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=ENDING_S)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


THREADS = Threads()
