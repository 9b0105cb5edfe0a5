"""An open file on the box: read and written in blocks, at its own place or at any offset."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from execserver.client.errors import ExecServerError
from execserver.client.operations import content
from execserver.client.operations.content import BLOCK_BYTES
from execserver_client._driving import adrive
from execserver_client._transfer import Host

_MOST: Final = 64 * 1024 * 1024  # of one read, which is held as a whole


class RemoteFile:
    """An asynchronous context manager that closes the file, and an iterator over its blocks of 1 MiB.

    `position` is where the next `read` or `write` without an offset begins.  The file belongs to one
    connection: after a loss its methods raise `NotFoundError`, and it must be opened again.
    """

    def __init__(self, host: Host, handle_id: str) -> None:
        """Use `Files.open` instead."""
        self.position: int = 0
        self._host = host
        self._handle_id = handle_id
        self._closed = False

    async def read(self, size: int = BLOCK_BYTES, offset: int | None = None) -> bytes:
        """Return `size` bytes (at most 64 MiB), fewer only at the end of the file, none behind it.

        Without `offset` they begin at `position`, which goes on behind them.  Raises ValueError for a size
        beyond that.
        """
        if not 0 <= size <= _MOST:
            raise ValueError(f"a read is of 0 to {_MOST} bytes, not {size}")
        begin = self.position if offset is None else offset
        pieces, come = [], 0
        while come < size:
            wanted = min(size - come, BLOCK_BYTES)
            piece = await self._block(begin + come, wanted)
            pieces.append(piece)
            come += len(piece)
            if len(piece) < wanted:
                break
        if offset is None:
            self.position = begin + come
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _block(self, offset: int, size: int) -> bytes:
        binary = self._host.extensions.binary_messages
        operation = content.read_block(self._handle_id, offset, size, binary=binary)
        return await adrive(self._host, operation)

    async def write(self, data: bytes, offset: int | None = None) -> None:
        """Write bytes at `offset`, else at `position`, which goes on behind them.

        A hole before them reads as zeros.
        """
        begin = self.position if offset is None else offset
        for at in range(0, len(data), BLOCK_BYTES):
            piece = data[at : at + BLOCK_BYTES]
            await adrive(self._host, content.write_block(self._handle_id, begin + at, piece))
        if offset is None:
            self.position = begin + len(data)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        block = await self.read()
        if not block:
            raise StopAsyncIteration
        return block

    async def aclose(self) -> None:
        """Close the file on the box.  May be called again."""
        if self._closed:
            return
        self._closed = True
        await adrive(self._host, content.close(self._handle_id))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        except ExecServerError:
            if error is None:
                raise
