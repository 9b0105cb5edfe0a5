"""Makes a tree of a box like one of this machine, by the steps of a plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from execserver.box.transfer.changes import (
    AT_ONCE,
    LARGE,
    WRITABLE,
    Listener,
    Through,
    anew,
    batches,
    check_hope,
    folders_to_open,
    is_large,
    side_by_side,
)
from execserver.box.transfer.comparing import Plan
from execserver.box.trees import here
from execserver.box.trees.here import Changed
from execserver.box.trees.nodes import Kind, Node, Tree, part_name
from execserver.box.trees.there import BATCH_NAMES, BoxTree
from execserver.client.errors import NotFoundError, RequestFailed
from execserver.protocol.batches import FsNodeKind, FsWriteEntry

_HOLE: Final = "bytes are missing"
_PIECE: Final = 512 * 1024  # the server writes so much in a thread, and takes the next one meanwhile


class Upload:
    """Carries out plans from one path here to one path of a box."""

    def __init__(self, source: bytes, target: BoxTree, listener: Listener, *, resumes: bool) -> None:
        """`resumes`: it goes on with large files that were cut."""
        self._resumes = resumes
        self._source = source
        self._target = target
        self._listener = listener

    def apply(self, plan: Plan, source: Tree, target: Tree) -> None:
        """Do what a plan says.  Raises Hopeless, and what the Python client raises."""
        self._remove(plan.cleared)
        opened = folders_to_open(plan, target)
        self._in_order(opened, lambda name: self._folder(name, source[name].mode | WRITABLE, None))
        self._in_order(plan.stamps, lambda name: self._stamped(name, source[name]))
        small = [name for name in (*plan.files, *plan.links) if not is_large(source[name])]
        for _ in side_by_side(lambda names: self._send(names, source), batches(small, source), AT_ONCE):
            pass
        for name in plan.files:
            if is_large(source[name]):
                self._guarded(name, self._large)
        self._remove(plan.removals)
        self._in_order(
            plan.settled, lambda name: self._folder(name, source[name].mode, source[name].modified_ns)
        )

    def _in_order(self, names: Sequence[bytes], entry: Callable[[bytes], FsWriteEntry]) -> None:
        for at in range(0, len(names), BATCH_NAMES):
            self._write([entry(name) for name in names[at : at + BATCH_NAMES]])

    def _remove(self, names: Sequence[bytes]) -> None:
        for at in range(0, len(names), BATCH_NAMES):
            batch = {self._target.name(name): name for name in names[at : at + BATCH_NAMES]}
            failed = self._write([FsWriteEntry(name=name, kind=FsNodeKind.ABSENT) for name in batch])
            for full, name in batch.items():
                if full not in failed:
                    self._listener.removed(name)

    def _write(self, entries: Sequence[FsWriteEntry]) -> set[bytes]:
        """Write entries; tell those that failed, and return their names."""
        failed = self._target.write(entries) if entries else []
        skip = len(self._target.name(b"")) + 1
        for entry, text in failed:
            self._listener.failed(entry.name[skip:], text)
            check_hope(text)
        return {bytes(entry.name) for entry, _ in failed}

    def _send(self, names: Sequence[bytes], source: Tree) -> None:
        entries: list[FsWriteEntry] = []
        for name in names:
            self._guarded(name, lambda each: entries.append(self._made(each, source[each])))
        failed = self._write(entries)
        for entry in entries:
            if entry.name not in failed:
                size = len(entry.content or b"")
                self._listener.copied(entry.name, size)
                self._listener.passed(size)

    def _made(self, name: bytes, node: Node) -> FsWriteEntry:
        full = self._target.name(name)
        if node.kind is Kind.LINK:
            return FsWriteEntry(
                name=full, kind=FsNodeKind.SYMLINK, target=node.target, modified_at_ns=node.modified_ns
            )
        data, now = here.content(self._path(name), 2 * LARGE)
        return FsWriteEntry(
            name=full, kind=FsNodeKind.FILE, mode=now.mode, modified_at_ns=now.modified_ns, content=data
        )

    def _folder(self, name: bytes, mode: int, modified_ns: int | None) -> FsWriteEntry:
        return FsWriteEntry(
            name=self._target.name(name), kind=FsNodeKind.DIRECTORY, mode=mode, modified_at_ns=modified_ns
        )

    def _stamped(self, name: bytes, node: Node) -> FsWriteEntry:
        return FsWriteEntry(
            name=self._target.name(name),
            kind=FsNodeKind.FILE,
            mode=node.mode,
            modified_at_ns=node.modified_ns,
        )

    def _guarded(self, name: bytes, work: Callable[[bytes], None]) -> None:
        try:
            work(name)
        except FileNotFoundError:
            self._listener.gone(name)  # as if it had never been listed
        except OSError as error:
            self._listener.failed(name, error.strerror or str(error))
        except NotFoundError:
            self._listener.gone(name)  # as if it had never been listed
        except RequestFailed as error:
            self._listener.failed(name, error.message)
        except Changed as error:
            self._listener.failed(name, str(error))

    # --- large files -------------------------------------------------------------------------------------

    def _large(self, name: bytes) -> None:
        fd = here.opened(self._path(name))
        try:
            status = os.fstat(fd)
            through = Through(self._listener)
            offset = self._resumed(name, fd, status)
            text = self._target.add(self._pieces(name, fd, status, offset, through))
            if text.startswith(_HOLE):  # a lost connection began it anew behind what had come
                text = self._target.add(self._pieces(name, fd, status, 0, through))
        finally:
            os.close(fd)
        if text:
            self._listener.failed(name, text)
            check_hope(text)
        else:
            self._listener.copied(name, status.st_size)

    def _resumed(self, name: bytes, fd: int, status: os.stat_result) -> int:
        """Return how many bytes of the file are there already, which are ours to go on with then."""
        there = self._target.part_size(name) if self._resumes else 0
        if not there:
            return 0
        # First an empty piece, so that nobody else writes there behind the look.  A whole part gets its name
        # by that: it comes last, from `_pieces`.
        claim = msgspec.structs.replace(self._whole(name, status), content=b"", offset=there)
        is_refused = there > status.st_size or (there < status.st_size and bool(self._target.add([claim])))
        if is_refused or self._target.part_digest(name, there) != here.digest(fd, 0, there):
            self._listener.say(anew(name))
            return 0
        return there

    def _whole(self, name: bytes, status: os.stat_result) -> FsWriteEntry:
        return FsWriteEntry(
            name=self._target.name(name),
            kind=FsNodeKind.FILE,
            mode=status.st_mode & 0o7777,
            modified_at_ns=status.st_mtime_ns,
            part=part_name(os.path.basename(self._target.name(name))),
            size=status.st_size,
        )

    def _pieces(
        self, name: bytes, fd: int, status: os.stat_result, begin: int, through: Through
    ) -> Iterator[FsWriteEntry]:
        """Yield everything from an offset.  Raises Changed unless it is still the same file."""
        through.to(begin)
        whole = self._whole(name, status)
        for offset in range(begin, status.st_size, _PIECE) or [begin]:
            data = os.pread(fd, _PIECE, offset)
            if here.identity(os.fstat(fd)) != here.identity(status) or (
                len(data) != min(_PIECE, status.st_size - offset)
            ):
                raise Changed("it changes while it is read")
            yield msgspec.structs.replace(whole, content=data, offset=offset)
            through.to(offset + len(data))

    def _path(self, name: bytes) -> bytes:
        return os.path.join(self._source, name) if name else self._source
