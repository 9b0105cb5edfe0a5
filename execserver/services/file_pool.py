"""Threads for file calls that may take long or hang.

A thread that hangs in the kernel cannot be ended, so their number is bounded: a call that makes no progress
in time is given up, its thread counts as stuck until it returns, and when all are stuck further calls are
refused at once instead of waiting.
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
    from execserver.files.pausing import Pause

T = TypeVar("T")


class _GivenUp(BaseException):
    """Ends a call in its thread, at the next pause, after nobody waits for it any more."""


class _Task(Generic[T]):
    """One call in a thread: what it returned or raised, and when it last made progress."""

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
        """Return or raise what came of it, once.

        Both may hold this task: an error by its traceback, a value by the `pause` it was given.
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
    """At most `threads` calls at a time; the threads are made when first needed."""

    def __init__(self, threads: int, timeout_s: float) -> None:
        self._threads = threads
        self._timeout_s = timeout_s
        self._slots = BoundedSemaphore(threads)
        self._pool: ThreadPool | None = None
        self._stuck = 0

    def call(self, function: Callable[[Pause], T], discard: Callable[[T], None] | None = None) -> T:
        """Run a function in a thread and return what it returns; the other greenlets go on meanwhile.

        The function gets a `pause` to call as a sign of progress.  Raises OSError ETIMEDOUT when there is
        none for too long or no thread becomes free, InternalError when all threads are stuck.  A result that
        comes when nobody waits for it any more goes to `discard`.
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
        finally:
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
        """Wait for the end; False when the last progress is too long ago."""
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
        """Count a thread as stuck until it comes back."""
        self._stuck += 1

        def come_back(_: AsyncResult[None]) -> None:
            self._stuck -= 1
            self._slots.release()
            if task.error is None and discard is not None:
                discard(task.value)  # type: ignore[arg-type]

        finished.rawlink(come_back)


def _timed_out() -> OSError:
    return OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
