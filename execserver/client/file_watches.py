"""Watched directories: batches of changes, an extension of this project's server.

A watch goes on over a lost connection: `batch_log` has the rules.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from gevent.event import Event

from execserver.client.errors import ExecServerError, WaitTimeout
from execserver.client.greenlets.errands import finish, opened
from execserver.client.greenlets.router import Watch
from execserver.client.greenlets.session import Session
from execserver.client.operations import watches as asking
from execserver.client.operations.call import drive
from execserver.client.rules.batch_log import BatchLog
from execserver.protocol.file_watches import FsChangesNotification, FsWatchParams, FsWatchResponse
from execserver.protocol.files import FsWalkError


class Watches(Protocol):
    """Where the watches of a session are found by their ids."""

    watches: dict[str, Watch]


class FileWatch:
    """A watched directory: a context manager that closes it, and an iterator over batches of changes.

    `folders` is how many directories were watched at first, `errors` are those that could not be.  With
    `local` False other machines may change files without anybody being told.  Iterating ends when the watch
    is closed, or when it has ended by itself, after a batch with `ended` and the reason; it raises what ended
    the session.
    """

    def __init__(self, session: Session, home: Watches, watch_id: str) -> None:
        """Use `RemoteFiles.watch` instead."""
        self.watch_id = watch_id
        self._session = session
        self._home = home
        self._log = BatchLog()
        self._stirred = Event()
        self.folders = 0
        self.local = True
        self.errors: tuple[FsWalkError, ...] = ()

    @classmethod
    def open(cls, session: Session, home: Watches, params: FsWatchParams) -> FileWatch:
        """Begin to watch.  Raises `RequestFailed` and `UnsupportedByServer`."""
        asking.require(session.extensions)
        watch = cls(session, home, params.watch_id)
        # Before the request: the first batch may overtake its answer.
        home.watches[params.watch_id] = watch
        try:
            watch._adopt(opened(session, asking.watch(params), asking.unwatch(params.watch_id)))
        except BaseException:
            home.watches.pop(params.watch_id, None)
            raise
        return watch

    def next_batch(self, timeout: float | None = None) -> FsChangesNotification | None:
        """Return the next batch; None when the watch is over.  Raises `WaitTimeout` after so many seconds."""
        while not self._log.settled:
            self._stirred.clear()
            with self._session.waiting():
                stirred = self._stirred.wait(timeout)
            if not stirred:
                raise WaitTimeout(f"nothing has changed for {timeout:g} s")
        return self._log.take()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FsChangesNotification:
        batch = self.next_batch()
        if batch is None:
            raise StopIteration
        return batch

    def close(self) -> None:
        """End the watch, also if the caller is interrupted.  May be called again."""
        if self._home.watches.get(self.watch_id) is self:
            del self._home.watches[self.watch_id]
            finish(self._session, asking.unwatch(self.watch_id))
        self._log.close()
        self._stirred.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def deliver(self, batch: FsChangesNotification) -> None:
        """Take a batch; one that comes twice, or too early after a lost connection, is left out."""
        self._log.add(batch)
        self._stirred.set()

    def resume(self) -> None:
        """Ask for what has not arrived, on a new connection."""
        error = drive(self._session, asking.resume(self.watch_id, self._log))
        if error is not None:
            self.fail(error)

    def fail(self, error: ExecServerError) -> None:
        """End with an error; what has come can still be taken."""
        self._log.fail(error)
        self._stirred.set()

    def _adopt(self, found: FsWatchResponse) -> None:
        self.folders, self.local, self.errors = found.folders, found.local, found.errors
