"""Threads for file calls that may take long or hang.

Nothing can end a thread that hangs in the kernel, so their number is limited.  A call that makes no progress
in time is abandoned, and its thread counts as stuck until it returns.  While all threads are stuck, further
calls are refused at once instead of waiting.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from gevent.event import AsyncResult
from gevent.lock import BoundedSemaphore
from gevent.threadpool import ThreadPool

from execserver.protocol.errors import InternalError

if TYPE_CHECKING:
    from execserver.files.yielding import Pause

T = TypeVar("T")


class _GivenUp(BaseException):
    """Ends an abandoned call in its thread, at its next pause."""


class _Task(Generic[T]):
    """One call in a thread: its result or exception, and the time of its last progress."""

    def __init__(self, function: Callable[[Pause], T]) -> None:
        self._function = function
        self.last_progress = time.monotonic()
        self.given_up = False
        self.value: T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.value = self._function(self._pause)
        except BaseException as error:  # raised again where the call was made
            self.error = error

    def outcome(self) -> T:
        """Return the result or raise the exception; to be called once.

        Either may refer to this task, an exception by its traceback, a result by the `pause` it was given: so
        the task lets go of both, or only the garbage collector would free them.
        """
        value, self.value = self.value, None
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
            return value  # type: ignore[return-value]
        finally:
            del error

    def _pause(self) -> None:
        self.last_progress = time.monotonic()
        if self.given_up:
            raise _GivenUp


class FilePool:
    """At most `threads` calls at a time; the threads are made when first needed.

    A call is abandoned after `timeout_s` seconds without progress.
    """

    def __init__(self, threads: int, timeout_s: float) -> None:
        self._threads = threads
        self._timeout_s = timeout_s
        self._slots = BoundedSemaphore(threads)
        self._pool: ThreadPool | None = None
        self._stuck = 0

    def call(self, function: Callable[[Pause], T], discard: Callable[[T], None] | None = None) -> T:
        """Run a function in a thread and return its result; other greenlets run meanwhile.

        The function gets a `pause`, which it calls as a sign of progress.  Raises OSError ETIMEDOUT without
        progress for too long, or if no thread becomes free; InternalError while all threads are stuck.  The
        result of an abandoned call goes to `discard`.
        """
        if self._stuck >= self._threads:
            raise InternalError(f"all {self._threads} file threads hang in file systems that do not answer")
        if not self._slots.acquire(timeout=self._timeout_s):
            raise _timed_out()
        task = _Task(function)
        finished = self._start(task)
        try:
            if not self._wait(task, finished):
                task.given_up = True
                raise _timed_out()
        finally:  # also when the calling greenlet is killed: the thread may then run on
            if finished.ready():
                self._slots.release()
            else:
                self._abandon(task, finished, discard)
        return task.outcome()

    def _start(self, task: _Task[T]) -> AsyncResult[None]:
        if self._pool is None:
            self._pool = ThreadPool(self._threads)
        try:
            return self._pool.spawn(task.run)
        except BaseException:
            self._slots.release()
            raise

    def _wait(self, task: _Task[T], finished: AsyncResult[None]) -> bool:
        """Wait for the end of a call; return False if its last progress is too long ago."""
        while True:
            left = task.last_progress + self._timeout_s - time.monotonic()
            if left <= 0:
                return finished.ready()
            finished.wait(left)
            if finished.ready():
                return True

    def _abandon(
        self, task: _Task[T], finished: AsyncResult[None], discard: Callable[[T], None] | None
    ) -> None:
        """Count the thread of a call as stuck until it comes back."""
        self._stuck += 1

        def come_back(_: AsyncResult[None]) -> None:
            self._stuck -= 1
            self._slots.release()
            # A descriptor, say, that was opened after all: nobody else would close it.
            if task.error is None and discard is not None:
                discard(task.value)  # type: ignore[arg-type]

        finished.rawlink(come_back)


def _timed_out() -> OSError:
    return OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
