"""From here to a box: a file, or a tree in batches.

Every file appears whole there: a small one at once, a large one by a rename once all of it has come.  The
disk is read in threads, a piece at a time, and only so much is held as is on its way.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

import msgspec

from execserver.box.shown import shown
from execserver.client.errors import (
    ExecServerError,
    ProtocolViolation,
    RequestFailed,
    TransferFailed,
    UnsupportedByServer,
)
from execserver.client.operations import content, files, trees
from execserver.client.operations.content import BLOCK_BYTES, WHOLE_READ_BYTES, Handles
from execserver.client.rules import wire
from execserver.client.rules.wire import RemotePath, Sandbox
from execserver.protocol.batches import FsNodeKind, FsWriteEntry
from execserver.protocol.paths import PathUri
from execserver_client import _local
from execserver_client._driving import adrive
from execserver_client._local import LARGE, Changed, Found
from execserver_client._threads import ahead, in_thread
from execserver_client._transfer import Account, Host, LocalPath, Progress, Transfer

_BATCH_NAMES: Final = 500
_BATCH_BYTES: Final = 1024 * 1024
_AT_ONCE: Final = 3  # batches on their way
_WINDOW: Final = 4  # pieces of a large file on their way
_MOST_FOLDERS: Final = 1_000_000  # held until the end, for their times
_HOLE: Final = "bytes are missing"  # pieces that were sent again came in another order
_CLEANING_S: Final = 5.0
# What fails once for these reasons (28: disk full, 30: read-only, 122: quota) fails for everything.
_HOPELESS: Final = tuple(f"(os error {number})" for number in (28, 30, 122))


async def upload(
    host: Host,
    handles: Handles,
    local: LocalPath,
    remote: RemotePath,
    *,
    progress: Progress | None,
    sandbox: Sandbox,
) -> Transfer:
    """Copy what is at `local` to `remote`; `Files.upload` says what is promised."""
    source, account = os.path.abspath(os.fsencode(local)), Account(progress)
    there = wire.path_uri(remote)
    found = await in_thread(_local.top, source)
    if found is None:
        raise TransferFailed((("", "it is no file and no folder"),))
    if found.kind is FsNodeKind.DIRECTORY:
        if not host.extensions.fs_many:
            raise UnsupportedByServer("this server does not take trees")
        await adrive(host, files.create_directory(there, sandbox=sandbox), resend=True)
        await _Tree(host, source, there, account, sandbox).send()
    else:
        await _single(host, handles, source, there, account, sandbox)
    return account.result()


async def _single(
    host: Host, handles: Handles, source: bytes, there: PathUri, account: Account, sandbox: Sandbox
) -> None:
    fd = await in_thread(partial(_local.opened, source, follow=True), undo=os.close)
    try:
        if host.extensions.fs_many:
            folder, _, name = there.native().rpartition(b"/")
            found = _local.node(name, source, os.fstat(fd))
            assert found is not None
            await _Tree(host, source, PathUri.from_native(folder or b"/"), account, sandbox).whole(found, fd)
        else:
            await _in_place(host, handles, fd, there, account, sandbox)
    except Changed as error:
        account.fail("", str(error))
    finally:
        os.close(fd)
    account.files += 1


async def _in_place(
    host: Host, handles: Handles, fd: int, there: PathUri, account: Account, sandbox: Sandbox
) -> None:
    """Write a file on a server that cannot replace one as a whole."""
    status = os.fstat(fd)
    info = host.environment_info
    if status.st_size <= WHOLE_READ_BYTES:
        data = await in_thread(_local.whole, fd, WHOLE_READ_BYTES)
        await adrive(host, content.write_file(handles, there, data, info, sandbox))
        account.passed(len(data))
        return
    handle_id = await adrive(host, content.open_file(handles.new(), there, "replace", info, sandbox))
    try:
        for begin, size in _parts(status.st_size):
            data = await in_thread(_local.piece, fd, _local.identity(status), begin, size)
            await adrive(host, content.write_block(handle_id, begin, data))
            account.passed(size)
    except BaseException:
        await adrive(host, content.abandon(handle_id))
        raise
    await adrive(host, content.close(handle_id))


class _Tree:
    """Makes what is below a folder of a box like what is below one of this machine; removes nothing."""

    def __init__(self, host: Host, source: bytes, there: PathUri, account: Account, sandbox: Sandbox) -> None:
        self._host = host
        self._source = source
        self._there = there
        self._account = account
        self._sandbox = sandbox
        self._folders: list[Found] = []
        self._reading = asyncio.Lock()

    async def send(self) -> None:
        """Copy everything.  Raises TransferFailed if nothing more can be written there."""
        names = _local.walk(self._source, self._account.fail, self._account.leave_out)
        try:
            while some := await in_thread(_local.some, names, _BATCH_NAMES):
                await self._some(some)
        finally:
            names.close()
        # The deepest first: to write into a folder changes its time.
        for begin in range(len(self._folders), 0, -_BATCH_NAMES):
            last = self._folders[max(begin - _BATCH_NAMES, 0) : begin]
            await self._write([folder.stamp() for folder in reversed(last)])

    async def whole(self, found: Found, fd: int) -> None:
        """Copy one open file.  Raises Changed, TransferFailed."""
        if found.size <= LARGE:
            data = await in_thread(_local.whole, fd, 2 * LARGE)
            if not await self._write([found.entry(data)]):
                self._account.passed(len(data))
        else:
            await self._pieces(found, fd)

    async def _some(self, some: Sequence[Found]) -> None:
        """Copy names whose folders are there, or are among them."""
        folders = [each for each in some if each.kind is FsNodeKind.DIRECTORY]
        self._folders += folders
        if len(self._folders) > _MOST_FOLDERS:
            raise TransferFailed((("", f"more than {_MOST_FOLDERS} folders"),))
        await self._write([each.entry() for each in folders])
        small = [each for each in some if each.kind is not FsNodeKind.DIRECTORY and each.size <= LARGE]
        batches = (partial(self._batch, batch) for batch in _batches(small))
        async with aclosing(ahead(batches, _AT_ONCE)) as ends:
            async for _ in ends:
                pass
        for each in some:
            if each.size > LARGE:
                await self._large(each)

    async def _batch(self, names: Sequence[Found]) -> None:
        entries = await in_thread(_local.small_files, self._source, names, self._account.fail)
        failed = await self._write(entries)
        for index, entry in enumerate(entries):
            if index not in failed and entry.kind is FsNodeKind.FILE:
                self._account.files += 1
                self._account.passed(len(entry.content or b""))

    async def _large(self, found: Found) -> None:
        try:
            fd = await in_thread(
                partial(_local.opened, os.path.join(self._source, found.name), follow=False), undo=os.close
            )
            try:
                await self.whole(_as_it_is(found, fd), fd)
            finally:
                os.close(fd)
        except FileNotFoundError:
            return  # gone meanwhile, as if it had never been there
        except OSError as error:
            self._account.fail(shown(found.name, 300), error.strerror or str(error))
        except Changed as error:
            self._account.fail(shown(found.name, 300), str(error))
        else:
            self._account.files += 1

    async def _pieces(self, found: Found, fd: int) -> None:
        """Collect a file beside its name there, which it gets with its last piece."""
        part = b".execserver-" + os.urandom(8).hex().encode()
        whole = msgspec.structs.replace(found.entry(), part=part, size=found.size)
        reason: str | None = "it was not sent as a whole"
        try:
            reason, told = await self._sent(whole, fd, _WINDOW, 0)
            if reason is not None and reason.startswith(_HOLE):
                reason, _ = await self._sent(whole, fd, 1, told)
        finally:
            if reason is not None:
                await self._forget(found.name, part)
        if reason is not None:
            self._fail(found.name, reason)

    async def _sent(self, whole: FsWriteEntry, fd: int, window: int, told: int) -> tuple[str | None, int]:
        """Send all pieces, so many at a time; return why that failed, or None.

        `told` bytes have been told of before; the number of those that have been now is returned, too.
        """
        works = (partial(self._piece, whole, fd, *each) for each in _parts(whole.size))
        come = 0
        async with aclosing(ahead(works, window)) as reasons:
            async for reason in reasons:
                if reason is not None:
                    return reason, told
                come = min(come + BLOCK_BYTES, whole.size)
                self._account.passed(max(come - told, 0))
                told = max(come, told)
        return None, told

    async def _piece(self, whole: FsWriteEntry, fd: int, begin: int, size: int) -> str | None:
        expected = (whole.size, whole.modified_at_ns or 0)
        async with self._reading:  # so pieces are sent in their order: the box takes no hole
            data = await in_thread(_local.piece, fd, expected, begin, size)
        entry = msgspec.structs.replace(whole, content=data, offset=begin)
        if self._host.extensions.fs_write_part:  # the same, and its bytes may go without base64
            try:
                await adrive(self._host, trees.write_part(self._there, entry, self._sandbox))
            except RequestFailed as error:
                return error.message
            return None
        failed = await adrive(self._host, trees.write_many(self._there, [entry], self._sandbox))
        return failed[0].message if failed else None

    async def _forget(self, name: bytes, part: bytes) -> None:
        """Remove what has come of a file that will not be whole."""
        folder, slash, _ = name.rpartition(b"/")
        entry = FsWriteEntry(name=folder + slash + part, kind=FsNodeKind.ABSENT)
        try:
            await adrive(self._host, trees.write_many(self._there, [entry], self._sandbox, _CLEANING_S))
        except ExecServerError:
            pass  # why it will not be whole counts more

    async def _write(self, entries: Sequence[FsWriteEntry]) -> set[int]:
        """Write entries; tell those that failed, and return their numbers."""
        if not entries:
            return set()
        failed = await adrive(self._host, trees.write_many(self._there, entries, self._sandbox))
        for each in failed:
            if each.index >= len(entries):
                raise ProtocolViolation(f"the server tells of entry {each.index} of {len(entries)}")
            self._fail(entries[each.index].name, each.message)
        return {each.index for each in failed}

    def _fail(self, name: bytes, reason: str) -> None:
        """Note a failure.  Raises TransferFailed if all that follows would fail, too."""
        self._account.fail(shown(name, 300), shown(reason, 300))
        if reason.endswith(_HOPELESS):
            raise self._account.failure()


def _as_it_is(found: Found, fd: int) -> Found:
    status = os.fstat(fd)
    return found._replace(size=status.st_size, modified_ns=status.st_mtime_ns)


def _batches(names: Sequence[Found]) -> Iterator[list[Found]]:
    """Yield names in groups whose content fits into one request."""
    batch: list[Found] = []
    size = 0
    for each in names:
        if batch and size + each.size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += each.size
    if batch:
        yield batch


def _parts(size: int) -> Iterator[tuple[int, int]]:
    """Yield the offsets and sizes of the blocks of a file."""
    return ((begin, min(BLOCK_BYTES, size - begin)) for begin in range(0, size, BLOCK_BYTES))
