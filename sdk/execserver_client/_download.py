"""From a box to here: a file, or a tree as an archive.

Whatever the box sends, nothing is written but at the target and below it: `execserver.box.trees.unpacking`
sees to that.  A file gets its name once it is whole.  The disk is written to in threads, a piece at a time,
while the next piece is on its way; no more than that is held.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Final

from execserver.box.shown import shown
from execserver.box.trees import tar
from execserver.box.trees.native import native
from execserver.box.trees.tar import BadArchive, Entry, Reader
from execserver.box.trees.unpacking import Unpacker
from execserver.client.errors import FileTooLarge, ProtocolViolation, TransferFailed, UnsupportedByServer
from execserver.client.operations import content, files, trees
from execserver.client.operations.content import BLOCK_BYTES, WHOLE_READ_BYTES, Handles
from execserver.client.operations.pages import Archive
from execserver.client.rules.wire import RemotePath, Sandbox
from execserver.protocol.files import FsWalkError
from execserver_client._blocks import Blocks
from execserver_client._driving import adrive
from execserver_client._threads import ahead, begin, in_thread
from execserver_client._transfer import Account, Host, LocalPath, Progress, Transfer

_WINDOW: Final = 4  # blocks of a file on their way
_LARGEST_PIECE: Final = 4 * BLOCK_BYTES  # of an archive; a server of ours sends a quarter
_UNKNOWN_MODE: Final = 0o600  # where the server does not tell


class Target:
    """What is written here.  Owns descriptors until `close`; all methods block, and one runs at a time."""

    def __init__(self, local: bytes, account: Account, *, tree: bool) -> None:
        """Open the folder of `local`, and for a tree make `local` itself.  Raises OSError."""
        folder, name = os.path.split(os.path.abspath(local))
        if not name:
            raise IsADirectoryError(f"the target must have a name, {shown(local, 300)} has none")
        if tree:
            try:
                os.mkdir(local)
            except FileExistsError:
                pass  # if it is no folder, or a link to one, the first entry fails
        self._name = name
        self._reader = Reader()
        self._account = account
        self._unpacker = Unpacker(folder, None if tree else name, name, account.leave_out)

    def begin(self, size: int, mode: int, modified_ns: int) -> None:
        """Begin the one file that this is."""
        self._unpacker.take(Entry(self._name, tar.FILE, size, mode, modified_ns))
        self._account.files += 1

    def write(self, data: bytes) -> None:
        """Write what follows of the file."""
        self._unpacker.take(data)

    def unpack(self, piece: bytes) -> int:
        """Write what a piece of an archive completes; return how many bytes of content that is."""
        written = 0
        for item in self._reader.feed(piece):
            self._unpacker.take(item)
            if isinstance(item, bytes):
                written += len(item)
            elif item.kind == tar.FILE:
                self._account.files += 1
        return written

    def finish(self) -> None:
        """Give folders their modes and times.  Raises BadArchive for an archive that is cut."""
        if not self._reader.is_complete:
            raise BadArchive("it ends too early")
        self._unpacker.finish()

    def close(self) -> None:
        """Release everything; a file that is not whole is removed."""
        try:
            self._unpacker.close()
        except OSError:
            pass  # its folder is gone, and it with that


async def download(
    host: Host,
    handles: Handles,
    remote: RemotePath,
    local: LocalPath,
    *,
    progress: Progress | None,
    max_bytes: int | None,
    sandbox: Sandbox,
) -> Transfer:
    """Copy what is at `remote` to `local`; `Files.download` says what is promised."""
    account = Account(progress)
    found = await adrive(host, files.get_metadata(remote, sandbox), resend=True)
    if found.is_directory and not host.extensions.fs_archive:
        raise UnsupportedByServer("this server does not pack trees")
    if not (found.is_directory or found.is_file):
        raise TransferFailed((("", "it is no file and no folder"),))
    limit = _Limit(max_bytes)
    target = await in_thread(
        partial(Target, os.fsencode(local), account, tree=found.is_directory), undo=Target.close
    )
    try:
        if found.is_directory:
            await _tree(host, remote, target, account, limit, sandbox)
        else:
            mode, modified_ns = _UNKNOWN_MODE, found.modified_at_ms * 1_000_000
            if host.extensions.fs_change:
                known = await adrive(host, files.stat(remote, sandbox), resend=True)
                mode, modified_ns = known.mode, known.version.modified_at_ns
            if found.size > WHOLE_READ_BYTES and (sandbox is None or _can_stream_sandboxed(host)):
                pieces = _blocks(Blocks(host, handles, remote, found, sandbox), found.size, limit)
            else:
                pieces = _whole(host, remote, limit, sandbox)
            await _file(pieces, target, account, mode, modified_ns)
        await in_thread(target.finish)
    except BadArchive as error:
        raise ProtocolViolation(f"what the server sends as an archive is none: {error}") from error
    finally:
        await in_thread(target.close)
    return account.result()


def _can_stream_sandboxed(host: Host) -> bool:
    info = host.environment_info
    return info is not None and info.capabilities.sandboxed_file_streaming


class _Limit:
    """Counts what comes up to the caller's limit."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._come = 0

    def add(self, size: int) -> None:
        """Raises FileTooLarge beyond the limit."""
        self._come += size
        if self._most is not None and self._come > self._most:
            raise FileTooLarge(f"this is more than {self._most} bytes")


async def _file(
    pieces: AsyncGenerator[bytes | int, None], target: Target, account: Account, mode: int, modified_ns: int
) -> None:
    """Write a file from its size and, behind that, its content."""
    async with aclosing(pieces):
        async for piece in pieces:
            if isinstance(piece, int):
                await in_thread(target.begin, piece, mode, modified_ns)
            else:
                await in_thread(target.write, piece)
                account.passed(len(piece))


async def _whole(
    host: Host, remote: RemotePath, limit: _Limit, sandbox: Sandbox
) -> AsyncGenerator[bytes | int, None]:
    data = await adrive(host, content.read_whole(remote, sandbox), resend=True)
    limit.add(len(data))
    yield len(data)
    for offset in range(0, len(data), BLOCK_BYTES):
        yield data[offset : offset + BLOCK_BYTES]


async def _blocks(file: Blocks, size: int, limit: _Limit) -> AsyncGenerator[bytes | int, None]:
    """Yield the file as long as it was when it was looked at; what is added meanwhile is left out."""
    limit.add(size)
    try:
        yield size
        sizes = ((offset, min(BLOCK_BYTES, size - offset)) for offset in range(0, size, BLOCK_BYTES))
        calls = (partial(file.read, *each) for each in sizes)
        async with aclosing(ahead(calls, _WINDOW)) as blocks:
            async for block in blocks:
                yield block
    finally:
        await file.aclose()


async def _tree(
    host: Host, remote: RemotePath, target: Target, account: Account, limit: _Limit, sandbox: Sandbox
) -> None:
    errors: list[FsWalkError] = []
    archive = trees.archive_pieces(remote, errors, sandbox)
    async with aclosing(_pieces(host, archive)) as pieces:
        async for piece in pieces:
            limit.add(len(piece))
            if len(piece) > _LARGEST_PIECE:
                raise ProtocolViolation(f"the server sends {len(piece)} bytes of an archive at once")
            account.passed(await in_thread(target.unpack, piece))
            for each in errors:
                account.fail(shown(native(each.path), 300), shown(each.message, 300))
            errors.clear()


async def _pieces(host: Host, archive: Archive) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of an archive; the next one is on its way already."""
    coming = begin(adrive(host, archive.next(), resend=True))
    try:
        while True:
            piece = await coming
            if archive.ended:
                yield piece
                return
            coming = begin(adrive(host, archive.next(), resend=True))
            yield piece
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
