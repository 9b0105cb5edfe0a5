"""The blocking twin of `execserver_client.watches`; `build.py docs` writes it from there."""

from __future__ import annotations

from typing import Any, Self

from execserver.protocol.file_watches import FsChangesNotification
from execserver.protocol.files import FsWalkError
from execserver_client import watches as asynchronous
from execserver_client.sync import _shapes as shapes
from execserver_client.sync._portal import Portal


class FileWatch:
    """A watched directory: an iterator over batches of changes.

    `folders` is how many directories were watched at first, `errors` are those that could not be.  With
    `local` False other machines may change files without anybody being told.  Iterating ends when the watch
    is closed, or when it has ended by itself, after a batch with `ended` and the reason; it raises what ended
    the session.
    """

    def __init__(self, portal: Portal, wrapped: asynchronous.FileWatch) -> None:
        self._portal = portal
        self._wrapped = wrapped

    @property
    def folders(self) -> int:
        """As in `execserver_client.FileWatch`."""
        return self._wrapped.folders

    @property
    def local(self) -> bool:
        """As in `execserver_client.FileWatch`."""
        return self._wrapped.local

    @property
    def errors(self) -> tuple[FsWalkError, ...]:
        """As in `execserver_client.FileWatch`."""
        return self._wrapped.errors

    def next_batch(self, timeout: float | None = None) -> FsChangesNotification | None:
        """Return the next batch; None when the watch is over.  Raises `WaitTimeout` after so many seconds."""
        return self._portal.call(self._wrapped.next_batch, timeout)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FsChangesNotification:
        for item in self._portal.call(shapes.step, self._wrapped):
            return item
        raise StopIteration

    def close(self) -> None:
        """End the watch.  May be called again."""
        self._portal.call(self._wrapped.aclose)

    def __enter__(self) -> Self:
        self._portal.call(self._wrapped.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._portal.call(self._wrapped.__aexit__, *error)
