"""Runs the file operations for all connections, so that none of them stops the server.

Short calls on local file systems run in the event loop's thread: a hop to another thread costs 60 µs, a
`stat` 5.  What may take long runs in threads; what may hang runs in other threads, limited in number and
time.  Content leaves as base64 pieces, so the server never holds a whole file.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from gevent import sleep

from execserver.core.file_handles import OpenFile
from execserver.files import (
    change,
    copy,
    folders,
    metadata,
    no_symlinks,
    opening,
    reading,
    remove,
    walk,
    writing,
)
from execserver.protocol import base64
from execserver.protocol.files import FsOpenMode
from execserver.services.file_pool import FilePool
from execserver.services.mounts import MountTable
from execserver.settings import Settings

if TYPE_CHECKING:
    from execserver.files.yielding import Pause

T = TypeVar("T")

# Codex's own clients: a message above their limit ends their connection.
_LIMITED_CLIENTS = frozenset({"codex-environment", "codex-core"})
_ENVELOPE_BYTES = 1024  # allowed for id and member names around the base64 text

_BUSY_THREADS = 4  # for long work on local file systems: copies, trees, large writes


class FileService:
    """The file operations of one server.  Owns the descriptor of the mount table until `close`.

    Paths are absolute.  With `links` False (no-symlinks mode) any symlink in the path is refused.
    """

    def __init__(self, settings: Settings, mounts: MountTable | None = None) -> None:
        self._mounts = mounts or MountTable()
        self._inline_bytes = settings.inline_file_bytes
        self._client_message_bytes = settings.client_message_bytes
        self._device_timeout_s = settings.device_write_timeout_s
        self._slow = FilePool(settings.stuck_file_threads, settings.file_call_timeout_s)
        self._busy = FilePool(_BUSY_THREADS, settings.file_call_timeout_s)
        self._slow_descriptors: set[int] = set()

    def close(self) -> None:
        """Close the descriptor; the operations still work, in threads."""
        self._mounts.close()

    def mount_generation(self) -> int:
        """Return a number that differs after every change of the mounts."""
        return self._mounts.generation()

    def is_local(self, path: bytes) -> bool:
        """Return whether using an absolute path certainly touches local file systems only."""
        return self._mounts.is_local(path)

    def in_thread(self, function: Callable[[Pause], T]) -> T:
        """Run long work that is no file call in a thread; other greenlets run meanwhile."""
        return self._busy.call(function)

    # --- short operations --------------------------------------------------------------------------------

    def get_metadata(self, path: bytes) -> tuple[bool, bool, bool, int, int]:
        """Return is_directory, is_file, is_symlink, size in bytes, time of modification in ms."""
        found = self.metadata_at_once(path)
        return self._slow.call(lambda pause: metadata.get_metadata(path)) if found is None else found

    def metadata_at_once(self, path: bytes) -> tuple[bool, bool, bool, int, int] | None:
        """Return what `get_metadata` does, or None if that may take long; never blocks."""
        return metadata.get_metadata(path) if self._mounts.is_local(path) else None

    def get_metadata_without_symlinks(self, path: bytes) -> tuple[tuple[bool, bool, bool, int, int], int]:
        """Return what `get_metadata` does, and the time of birth in ms; refuse symlinks in the path."""
        return self._short(path, lambda pause: no_symlinks.get_metadata(path))

    def canonicalize(self, path: bytes) -> bytes:
        """Return the resolved path."""
        return self._short(path, lambda pause: metadata.canonicalize(path))

    def create_directory(self, path: bytes, recursive: bool, links: bool = True) -> None:
        """Make a directory, with `recursive` also its parents."""
        make = metadata.create_directory if links else no_symlinks.create_directory
        self._short(path, lambda pause: make(path, recursive))

    def read_directory(self, path: bytes) -> list[tuple[str, bool, bool]]:
        """Return name, is_directory and is_file of every entry."""
        return self._short(path, lambda pause: metadata.read_directory(path, pause))

    def _short(self, path: bytes, function: Callable[[Pause], T]) -> T:
        return function(_let_others_run) if self._mounts.is_local(path) else self._slow.call(function)

    # --- long operations ---------------------------------------------------------------------------------

    def remove(self, path: bytes, recursive: bool, force: bool, links: bool = True) -> None:
        """Remove a file, a symlink, or with `recursive` a tree."""
        if not links:
            self._short(path, lambda pause: no_symlinks.remove(path, recursive, force))
        elif self._mounts.is_local(path) and not remove.removes_a_tree(path, recursive):
            remove.remove(path, recursive, force)
        else:
            self._for_trees().call(lambda pause: remove.remove(path, recursive, force, pause))

    def rename(self, source: bytes, destination: bytes, replace: bool) -> None:
        """Give a file or directory another name."""

        def run(_: object = None) -> None:
            change.rename((source, None), (destination, None), replace)

        if self._mounts.is_local(source) and self._mounts.is_local(destination):
            run()
        else:
            self._slow.call(run)

    def chmod(self, path: bytes, mode: int, links: bool = True) -> None:
        """Set the permissions of what a path leads to."""
        self._change(path, lambda name: change.chmod(name, mode), links)

    def touch(self, path: bytes, times: change.Times, create: bool, links: bool = True) -> None:
        """Set the times of what a path leads to; with `create` make an empty file where there is none."""
        if create:
            os.close(self._opened(path, opening.open_target))
        self._change(path, lambda name: change.touch(name, times), links)

    def _change(self, path: bytes, function: Callable[[change.Name], None], links: bool) -> None:
        def run(_: Pause) -> None:
            if links:
                function((os.path.realpath(path), None))
                return
            with no_symlinks.ResolvedName(path) as resolved:
                function((resolved.name, resolved.fd))

        self._short(path, run)

    def look(self, path: bytes) -> change.Look:
        """Return permissions, time of modification in ns, size, and the target of a symlink or nothing."""
        return self._short(path, lambda pause: change.look((path, None)))

    def symlink(self, text: bytes, path: bytes) -> None:
        """Make a symlink; no symlink is followed on the way."""
        self._short(path, lambda pause: no_symlinks.symlink(text, path))

    def place(self, path: bytes, function: Callable[[], None]) -> None:
        """Run a function that puts something in its place; it owns all that it opens."""
        self._short(path, lambda pause: function())

    def open_part(self, path: bytes) -> OpenFile:
        """Open a file to write a part of it, without symlinks; the caller closes it with `release`."""
        return self.adopt(self._opened(path, no_symlinks.open_target), FsOpenMode.REPLACE)

    def copy(self, source: bytes, destination: bytes, recursive: bool) -> None:
        """Copy a file, a symlink, or with `recursive` a tree."""
        if self._mounts.is_local(source) and self._mounts.is_local(destination):
            size = copy.copied_bytes(source)
            small = size is not None and size <= self._inline_bytes
            if small and not opening.is_character_device(destination):
                copy.copy(source, destination, recursive, copy.CopyOptions(_let_others_run))
                return

        def run(pause: Pause) -> None:
            copy.copy(source, destination, recursive, copy.CopyOptions(pause, self._device_timeout_s))

        self._for_trees().call(run)

    def walk(self, root: bytes, options: walk.WalkOptions) -> walk.Walk:
        """List what is below a directory."""

        def run(pause: Pause) -> walk.Walk:
            found = walk.Walk(options, pause)
            found.run(root)
            return found

        return self._for_trees().call(run)

    def _for_trees(self) -> FilePool:
        """Return the thread pool for a tree, which may have any mount further down."""
        return self._busy if self._mounts.all_local() else self._slow

    # --- whole files -------------------------------------------------------------------------------------

    def read_limit(self, client_name: str, *, bounded: bool = False) -> int:
        """Return how many bytes of a file may be sent to a client in one result.

        `bounded` tells that the transport has the same message limit as Codex's own clients.
        """
        if not bounded and client_name not in _LIMITED_CLIENTS:
            return reading.MAX_FILE_BYTES
        # Base64 makes 4 characters of 3 bytes.
        return (self._client_message_bytes - _ENVELOPE_BYTES) // 4 * 3

    def read_file(self, path: bytes, limit: int, links: bool = True) -> tuple[bytes, Iterator[bytes] | None]:
        """Return the first piece of a file's base64 text, and an iterator of the rest, None if that is all.

        Errors of opening are raised here, FileTooLarge above `limit` bytes included.  The iterator may raise
        OSError later; it owns the descriptor, and closes it when exhausted, closed or dropped.
        """
        if not links:
            return self.read_opened(self._opened(path, no_symlinks.open_regular), limit)
        local = self._mounts.is_local(path)
        if local:
            reader = reading.FileReader.open(path, limit, _let_others_run)
        else:
            reader = self._slow.call(lambda pause: reading.FileReader.open(path, limit, pause))
        return self._given_out(reader, local)

    def read_opened(self, fd: int, limit: int) -> tuple[bytes, Iterator[bytes] | None]:
        """Take over the descriptor of a regular file and return its content as `read_file` does."""
        local = self._mounts.is_local_device(os.fstat(fd).st_dev)
        if local:
            return self._given_out(reading.FileReader(fd, limit, _let_others_run), local)
        owned = _Owned(fd)  # no thread may become free, and then nobody takes the descriptor
        reader = self._slow.call(lambda pause: reading.FileReader(owned.take(), limit, pause))
        return self._given_out(reader, local)

    def _given_out(self, reader: reading.FileReader, local: bool) -> tuple[bytes, Iterator[bytes] | None]:
        whole = reader.whole
        if whole is not None:
            reader.close()
            return base64.encode(whole), None
        pieces = self._encoded(reader) if local else self._encoded_in_threads(reader)
        return next(pieces), pieces

    @staticmethod
    def _encoded(reader: reading.FileReader) -> Iterator[bytes]:
        with closing(reader):  # also when the generator is dropped, since it was started
            while piece := reader.next_piece():
                yield base64.encode(piece)

    def _encoded_in_threads(self, reader: reading.FileReader) -> Iterator[bytes]:
        # Not closed here: a thread may hang in a read.  The reader closes itself when it is collected, after
        # both this generator and the thread have let go of it.
        while piece := self._slow.call(lambda pause: reader.next_piece()):
            yield base64.encode(piece)

    def write_file(self, path: bytes, content: bytes, links: bool = True) -> None:
        """Create a file or replace its content."""
        if not links:
            self.write_opened(self._opened(path, no_symlinks.open_target), content)
            return
        if not self._mounts.is_local(path):
            pool = self._slow
        elif len(content) <= self._inline_bytes and not opening.is_character_device(path):
            writing.write_file(path, content)
            return
        else:
            pool = self._busy
        pool.call(lambda pause: writing.write_file(path, content, pause, self._device_timeout_s))

    def write_opened(self, fd: int, content: bytes) -> None:
        """Take over the descriptor of a file or device and replace its content."""
        status = os.fstat(fd)
        local = self._mounts.is_local_device(status.st_dev)
        if local and len(content) <= self._inline_bytes and stat.S_ISREG(status.st_mode):
            writing.replace_content(fd, content)
            return
        owned = _Owned(fd)
        pool = self._busy if local else self._slow
        pool.call(lambda pause: writing.replace_content(owned.take(), content, pause, self._device_timeout_s))

    # --- watched folders ---------------------------------------------------------------------------------

    def open_folder(self, path: bytes) -> int:
        """Open a directory for listing, without symlinks; closed with `release`."""
        return self.note_folder(self._opened(path, folders.open_folder))

    def note_folder(self, fd: int) -> int:
        """Note what kind of file system an open directory is on, for `release`."""
        return self.adopt(fd, FsOpenMode.READ).fd

    def names_in(self, fd: int, most: int, only_folders: bool) -> tuple[list[folders.Name], bool]:
        """Return the names in an open directory, at most so many, and whether these are all."""
        if fd not in self._slow_descriptors:
            return folders.names_in(fd, most, only_folders, _let_others_run)
        duplicate = _Owned(os.dup(fd))
        return self._slow.call(lambda pause: folders.names_in(duplicate.fd, most, only_folders, pause))

    def release_folder(self, fd: int) -> None:
        """Close what `open_folder` has opened."""
        self.release(fd)

    def visible(self, paths: list[bytes]) -> list[bool]:
        """Return that every path may be read."""
        return [True] * len(paths)

    # --- open files --------------------------------------------------------------------------------------

    def open(self, path: bytes, mode: FsOpenMode) -> OpenFile:
        """Open a regular file; the caller owns its descriptor and closes it with `release`."""
        opener = opening.open_regular if mode is FsOpenMode.READ else opening.open_replace
        if self._mounts.is_local(path):
            return OpenFile(opener(path), mode, local=True)

        def run(_: Pause) -> tuple[int, int]:
            fd = opener(path)
            return fd, os.fstat(fd).st_dev

        fd, device = self._slow.call(run, lambda opened: os.close(opened[0]))
        return self._noted(fd, device, mode)

    def _opened(self, path: bytes, opener: Callable[[bytes], int]) -> int:
        if self._mounts.is_local(path):
            return opener(path)
        return self._slow.call(lambda pause: opener(path), os.close)

    def adopt(self, fd: int, mode: FsOpenMode) -> OpenFile:
        """Make an open file from a descriptor, which the caller still owns and closes with `release`."""
        return self._noted(fd, os.fstat(fd).st_dev, mode)

    def _noted(self, fd: int, device: int, mode: FsOpenMode) -> OpenFile:
        local = self._mounts.is_local_device(device)
        if not local:
            self._slow_descriptors.add(fd)
        return OpenFile(fd, mode, local)

    def read_block(self, file: OpenFile, offset: int, length: int) -> bytes:
        """Return `length` bytes at an offset, fewer only at the end of the file."""
        if file.local:
            return reading.read_block(file.fd, offset, length)
        return self._on_duplicate(file.fd, lambda fd: reading.read_block(fd, offset, length))

    def write_block(self, file: OpenFile, offset: int, data: bytes) -> None:
        """Write all bytes at an offset."""
        if file.local:
            writing.write_block(file.fd, offset, data)
        else:
            self._on_duplicate(file.fd, lambda fd: writing.write_block(fd, offset, data))

    def _on_duplicate(self, fd: int, function: Callable[[int], T]) -> T:
        """Run a function in a thread, on a duplicate of the descriptor.

        While the thread hangs, the client may close its handle, and the number may come to mean another file.
        """
        duplicate = _Owned(os.dup(fd))

        def run(_: Pause) -> T:
            try:
                return function(duplicate.fd)
            finally:
                duplicate.close()

        return self._slow.call(run)

    def release(self, fd: int) -> None:
        """Close a descriptor from `open` or `adopt`; if that may hang, in a thread nobody waits for."""
        if fd in self._slow_descriptors:
            self._slow_descriptors.discard(fd)
            threading.Thread(target=os.close, args=(fd,), daemon=True).start()
        else:
            os.close(fd)


class _Owned:
    """Owns a descriptor on its way to a thread; closes it when collected, if nobody has taken it."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def take(self) -> int:
        """Give the descriptor to the caller."""
        fd, self.fd = self.fd, -1
        return fd

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def _let_others_run() -> None:
    sleep(0)
