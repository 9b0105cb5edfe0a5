"""Makes a tree of this machine like one of a box, by the steps of a plan.

What the box sends goes through `unpacking` and `below`, which stay below the target.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from execserver.box.shown import shown
from execserver.box.transfer.changes import (
    AT_ONCE,
    WRITABLE,
    Listener,
    anew,
    batches,
    check_hope,
    folders_to_open,
    is_large,
    side_by_side,
)
from execserver.box.transfer.comparing import Plan
from execserver.box.transfer.part import PartFile
from execserver.box.trees import tar
from execserver.box.trees.below import Below, Path, parts
from execserver.box.trees.here import Changed
from execserver.box.trees.nodes import PERMISSIONS, Kind, Node, Tree
from execserver.box.trees.tar import BadArchive, Entry
from execserver.box.trees.there import Blocks, BoxTree
from execserver.box.trees.unpacking import Unpacker
from execserver.client.errors import NotFoundError, RequestFailed
from execserver.protocol.batches import FsReadManyFile

_PIECE = 256 * 1024  # a longer answer costs the client another copy
_WINDOW = 16  # pieces of a large file on their way
_NO_SUCH = "(os error 2)"
_KINDS = {Kind.FILE: tar.FILE, Kind.FOLDER: tar.DIRECTORY, Kind.LINK: tar.SYMLINK}


class Download:
    """Carries out plans from one path of a box to one path here.  Owns descriptors until `close`."""

    def __init__(self, source: BoxTree, target: bytes, listener: Listener, *, resumes: bool) -> None:
        """Open the folder of the target, an absolute path.  Raises OSError.

        `resumes`: it goes on with large files that were cut.
        """
        self._resumes = resumes
        folder, self._base = os.path.split(target)
        self._source = source
        self._listener = listener
        self._folder = folder
        self._below = Below(folder)

    def close(self) -> None:
        """Release everything."""
        self._below.close()

    def apply(self, plan: Plan, source: Tree, target: Tree) -> None:
        """Do what a plan says.  Raises Hopeless, OSError and what the Python client raises."""
        unpacker = Unpacker(self._folder, self._base, self._base, self._listener.say)
        try:
            self._remove(plan.cleared)
            for name in folders_to_open(plan, target):
                self._guarded(name, lambda each: self._open(each, source[each]))
            for name in plan.stamps:
                self._guarded(name, lambda each: self._stamp(each, source[each]))
            for name in plan.links:
                self._guarded(name, lambda each: self._link(unpacker, each, source[each]))
            self._small(unpacker, [name for name in plan.files if not is_large(source[name])], source)
            for name in plan.files:
                if is_large(source[name]):
                    self._guarded(name, lambda each: self._large(each, source[each]))
            self._remove(plan.removals)
            for name in plan.settled:
                self._guarded(name, lambda each: self._stamp(each, source[each]))
        finally:
            unpacker.close()

    def _path(self, name: bytes) -> Path:
        return (self._base, *parts(name))

    def _full(self, name: bytes) -> bytes:
        return self._base + b"/" + name if name else self._base

    def _guarded(self, name: bytes, work: Callable[[bytes], None]) -> None:
        try:
            work(name)
        except OSError as error:
            self._listener.failed(name, error.strerror or str(error))
            check_hope(error)
        except NotFoundError:
            self._listener.gone(name)  # as if it had never been listed
        except RequestFailed as error:
            self._listener.failed(name, error.message)
        except (Changed, BadArchive) as error:
            self._listener.failed(name, str(error))

    def _remove(self, names: Sequence[bytes]) -> None:
        def remove(name: bytes) -> None:
            self._below.remove(self._path(name))
            self._listener.removed(name)

        for name in names:
            self._guarded(name, remove)

    def _open(self, name: bytes, node: Node) -> None:
        os.close(self._below.opened(self._path(name)))
        self._below.stamp(self._path(name), node.mode & PERMISSIONS | WRITABLE)

    def _stamp(self, name: bytes, node: Node) -> None:
        self._below.stamp(self._path(name), node.mode & PERMISSIONS, node.modified_ns)

    def _link(self, unpacker: Unpacker, name: bytes, node: Node) -> None:
        unpacker.take(self._entry(name, node, 0))
        self._listener.copied(name, 0)

    def _entry(self, name: bytes, node: Node, size: int) -> Entry:
        return Entry(self._full(name), _KINDS[node.kind], size, node.mode, node.modified_ns, node.target)

    def _small(self, unpacker: Unpacker, names: Sequence[bytes], source: Tree) -> None:
        groups = batches(names, source)
        for group in side_by_side(self._read, groups, AT_ONCE):
            for name, file in group:
                self._guarded(name, partial(self._write, unpacker, source[name], file))

    def _read(self, names: Sequence[bytes]) -> list[tuple[bytes, FsReadManyFile]]:
        found: list[tuple[bytes, FsReadManyFile]] = []
        while len(found) < len(names):
            rest = names[len(found) :]
            found += zip(rest, self._source.read(rest), strict=False)
        return found

    def _write(self, unpacker: Unpacker, node: Node, file: FsReadManyFile, name: bytes) -> None:
        if file.content is None and (file.error or "").endswith(_NO_SUCH):
            self._listener.gone(name)  # as if it had never been listed
            return
        if file.content is None:
            raise Changed(shown(file.error or "the box did not send it", 300))
        data = bytes(file.content)
        try:
            unpacker.take(self._entry(name, node, len(data)))
            if data:
                unpacker.take(data)
        except BaseException:
            unpacker.abandon()
            raise
        self._listener.copied(name, len(data))
        self._listener.passed(len(data))

    # --- large files -------------------------------------------------------------------------------------

    def _large(self, name: bytes, node: Node) -> None:
        part = PartFile(self._below, self._path(name))
        blocks = self._source.open(name)
        try:
            offset = self._resumed(name, node, part)
            self._blocks(node, part, blocks, offset)
            part.finish(node)
        finally:
            part.close()
            blocks.close()
        self._listener.copied(name, node.size)

    def _resumed(self, name: bytes, node: Node, part: PartFile) -> int:
        """Return how many bytes of the file are there already."""
        size = part.size if self._resumes else 0
        if size and size <= node.size and self._source.digest(name, 0, size) == part.digest(size):
            self._listener.passed(size)
            return size
        if size:
            self._listener.say(anew(name))
        part.cut(0)
        return 0

    def _blocks(self, node: Node, part: PartFile, blocks: Blocks, offset: int) -> None:
        def read(at: int) -> tuple[int, bytes]:
            return at, blocks.read(at, min(_PIECE, node.size - at))

        for at, data in side_by_side(read, range(offset, node.size, _PIECE), _WINDOW):
            if len(data) != min(_PIECE, node.size - at):
                raise Changed("it changes while it is read")
            part.write(at, data)
            self._listener.passed(len(data))
        if blocks.read(node.size, 1):
            raise Changed("it changes while it is read")
