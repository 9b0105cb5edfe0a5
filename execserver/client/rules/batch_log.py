"""The batches of one watched directory: which have come, and which wait to be taken.  Without I/O.

Batches have numbers.  One that comes twice, or too early after a lost connection, is left out; the server
sends again what did not arrive.  Where it cannot, and beyond 50,000 changes that nobody has taken, a batch
with `overflow` takes the place of those that are lost: look again.  A batch without changes counts as one,
and so does a folder that is not watched, and each KiB of a text.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from execserver.client.errors import ExecServerError, kept
from execserver.protocol.file_watches import FsChangesNotification

_MOST_CHANGES: Final = 50_000  # that wait to be taken; beyond, an overflow takes their place
_TEXT_OF_ONE: Final = 1024


class BatchLog:
    """Collects batches; `last_seq` is the number of the last one that has come, `over` is set at the end."""

    __slots__ = ("_changes", "_failure", "_ready", "last_seq", "over")

    def __init__(self) -> None:
        self.last_seq = 0
        self.over = False
        self._ready: deque[FsChangesNotification] = deque()
        self._changes = 0  # in all of them, and what counts as one
        self._failure: ExecServerError | None = None

    @property
    def pending(self) -> bool:
        """True if `take` has a batch to return."""
        return bool(self._ready)

    @property
    def settled(self) -> bool:
        """True if `take` has something to return or to raise, or never will."""
        return self.over or bool(self._ready) or self._failure is not None

    def take(self) -> FsChangesNotification | None:
        """Return the next batch, or None if none is ready.  Raises what `fail` was called with."""
        if self._ready:
            batch = self._ready.popleft()
            self._changes -= _weight(batch)
            return batch
        if self._failure is not None:
            raise kept(self._failure)
        return None

    def add(self, batch: FsChangesNotification) -> None:
        """Take a batch from the server, unless it is known or too early."""
        if batch.seq <= self.last_seq or (batch.seq > self.last_seq + 1 and not batch.overflow):
            return
        self.last_seq = batch.seq
        self._changes += _weight(batch)
        if self._changes > _MOST_CHANGES:
            self._ready.clear()
            batch = _lost(batch)
            self._changes = _weight(batch)
        self._ready.append(batch)
        self.over = self.over or batch.ended

    def fail(self, error: ExecServerError) -> None:
        """End with an error; what has come can still be taken."""
        if self._failure is None and not self.over:
            self._failure = kept(error)

    def close(self) -> None:
        """Take no more, and drop what waits."""
        self.over = True
        self._ready.clear()
        self._changes = 0


def _weight(batch: FsChangesNotification) -> int:
    texts = len(batch.reason or "") // _TEXT_OF_ONE
    for change in batch.changes:
        texts += len(change.path.uri) // _TEXT_OF_ONE
        if change.old_path is not None:
            texts += len(change.old_path.uri) // _TEXT_OF_ONE
    for error in batch.errors:
        texts += (len(error.path.uri) + len(error.message)) // _TEXT_OF_ONE
    return max(1, len(batch.changes) + len(batch.errors)) + texts


def _lost(batch: FsChangesNotification) -> FsChangesNotification:
    return FsChangesNotification(
        watch_id=batch.watch_id,
        seq=batch.seq,
        changes=(),
        errors=batch.errors,
        overflow=True,
        ended=batch.ended,
        reason=batch.reason if batch.ended else f"more than {_MOST_CHANGES} changes were not taken",
    )
