"""The blocking twin of `execserver_client._remote_file`; `build.py docs` writes it from there."""

from __future__ import annotations

from typing import Any, Self

from execserver.client.operations.content import BLOCK_BYTES
from execserver_client import _remote_file as asynchronous
from execserver_client.sync import _shapes as shapes
from execserver_client.sync._portal import Portal


class RemoteFile:
    """An context manager that closes the file, and an iterator over its blocks of 1 MiB.

    `position` is where the next `read` or `write` without an offset begins.  The file belongs to one
    connection: after a loss its methods raise `NotFoundError`, and it must be opened again.
    """

    def __init__(self, portal: Portal, wrapped: asynchronous.RemoteFile) -> None:
        self._portal = portal
        self._wrapped = wrapped

    @property
    def position(self) -> int:
        """As in `execserver_client.RemoteFile`."""
        return self._wrapped.position

    def read(self, size: int = BLOCK_BYTES, offset: int | None = None) -> bytes:
        """Return `size` bytes (at most 64 MiB), fewer only at the end of the file, none behind it.

        Without `offset` they begin at `position`, which goes on behind them.  Raises ValueError for a size
        beyond that.
        """
        return self._portal.call(self._wrapped.read, size, offset)

    def write(self, data: bytes, offset: int | None = None) -> None:
        """Write bytes at `offset`, else at `position`, which goes on behind them.

        A hole before them reads as zeros.
        """
        self._portal.call(self._wrapped.write, data, offset)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        for item in self._portal.call(shapes.step, self._wrapped):
            return item
        raise StopIteration

    def close(self) -> None:
        """Close the file on the box.  May be called again."""
        self._portal.call(self._wrapped.aclose)

    def __enter__(self) -> Self:
        self._portal.call(self._wrapped.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._portal.call(self._wrapped.__aexit__, *error)
