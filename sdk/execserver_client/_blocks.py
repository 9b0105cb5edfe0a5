"""Reads a file of the box block by block, over lost connections.

A handle ends with its connection.  Then another one is opened, and only if the file is still the same.
"""

from __future__ import annotations

import asyncio
from typing import Final

from execserver.client.errors import NotFoundError, ResumeFailed, TransferFailed, TransportClosed
from execserver.client.operations import content, files
from execserver.client.operations.content import Handles
from execserver.client.rules.wire import RemotePath, Sandbox
from execserver.protocol.files import FsGetMetadataResponse
from execserver_client._driving import adrive
from execserver_client._transfer import Host

_TRIES: Final = 20  # of a block, each with a handle of its own


class Blocks:
    """A file that is read from, several blocks at a time.  Close it."""

    def __init__(
        self,
        host: Host,
        handles: Handles,
        path: RemotePath,
        known: FsGetMetadataResponse,
        sandbox: Sandbox,
    ) -> None:
        """`known` is what the file was when its size was asked for."""
        self._host = host
        self._handles = handles
        self._path = path
        self._known = known
        self._sandbox = sandbox
        self._handle_id: str | None = None
        self._opening = asyncio.Lock()
        self._was_open = False

    async def read(self, offset: int, size: int) -> bytes:
        """Return all bytes asked for.

        Raises TransferFailed for a file that has changed, else as a call does.
        """
        for attempt in range(_TRIES):
            try:
                handle_id = await self._handle()
            except TransportClosed as error:
                if _is_final(error, attempt):
                    raise
                continue
            try:
                return await self._block(handle_id, offset, size)
            except TransportClosed as error:
                self._forget(handle_id)
                if _is_final(error, attempt):
                    raise
            except NotFoundError:  # the handle was of an earlier connection
                self._forget(handle_id)
                if attempt == _TRIES - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def aclose(self) -> None:
        """Close the file on the box."""
        handle_id, self._handle_id = self._handle_id, None
        if handle_id is not None:
            await adrive(self._host, content.abandon(handle_id))

    async def _block(self, handle_id: str, offset: int, size: int) -> bytes:
        binary = self._host.extensions.binary_messages
        block = await adrive(self._host, content.read_block(handle_id, offset, size, binary=binary))
        if len(block) < size:
            raise TransferFailed((("", "the file became shorter while it was read"),))
        return block

    async def _handle(self) -> str:
        async with self._opening:
            if self._handle_id is None:
                opening = content.opened_or_abandoned(
                    self._handles.new(), self._path, "read", None, self._sandbox
                )
                self._handle_id = await adrive(self._host, opening)
                if self._was_open:
                    await self._check()
                self._was_open = True
            return self._handle_id

    async def _check(self) -> None:
        """Raises TransferFailed unless the path leads to what it led to."""
        now = await adrive(self._host, files.get_metadata(self._path, self._sandbox), resend=True)
        if (now.size, now.modified_at_ms) != (self._known.size, self._known.modified_at_ms):
            raise TransferFailed((("", "the file has changed while the connection was lost"),))

    def _forget(self, handle_id: str) -> None:
        if self._handle_id == handle_id:
            self._handle_id = None


def _is_final(error: TransportClosed, attempt: int) -> bool:
    """Return whether the session itself has ended, or the connection does so each time."""
    return isinstance(error, ResumeFailed) or attempt == _TRIES - 1
