"""Copies files, symlinks and trees.

Does what the reference server does, with two exceptions: a file is never copied onto itself (that would empty
it), and nothing that can hang is opened.  Trees are walked by descriptors on both sides, so depth costs
neither stack nor path length.
"""

from __future__ import annotations

import os
import stat

from execserver.files.copy_data import copy_data, copy_sparse, copy_to_device, data_bytes, has_holes
from execserver.files.directory_stack import DirectoryStack
from execserver.files.metadata import canonicalize, create_directory
from execserver.files.opening import open_entry, open_target
from execserver.files.space import CHECKED_BYTES, give_back, refuse_without_room
from execserver.files.writing import DEVICE_TIMEOUT_S, cut_behind
from execserver.files.yielding import no_pause
from execserver.protocol.errors import InvalidRequest
from execserver.protocol.paths import display

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.files.yielding import Pause

_NEW_DIRECTORY_MODE = 0o777


class CopyOptions:
    """What all parts of one copy share: the pause, and how many seconds a device may take nothing."""

    __slots__ = ("device_timeout_s", "pause")

    def __init__(self, pause: Pause = no_pause, device_timeout_s: float = DEVICE_TIMEOUT_S) -> None:
        self.pause = pause
        self.device_timeout_s = device_timeout_s


def copy(source: bytes, destination: bytes, recursive: bool, options: CopyOptions | None = None) -> None:
    """Copy a file with its permission bits, a symlink as a symlink, or with `recursive` a directory.

    A file replaces the content of a file at the destination, also through a symlink; a directory is merged
    into an existing one.  Raises InvalidRequest for what the contract refuses, OSError otherwise.
    """
    options = options or CopyOptions()
    mode = os.lstat(source).st_mode
    if stat.S_ISDIR(mode):
        if not recursive:
            raise directory_without_recursive()
        _refuse_inside(source, destination)
        create_directory(destination, recursive=True)
        with DirectoryStack(source) as origin, DirectoryStack(destination, follow=True) as target:
            TreeCopy(options).run(origin, target)
    elif stat.S_ISLNK(mode):
        os.symlink(os.readlink(source), destination)
    elif stat.S_ISREG(mode):
        if not copy_file(source, destination, None, None, options):
            raise onto_itself(source)
    else:
        raise no_kind_to_copy()


def directory_without_recursive() -> InvalidRequest:
    """Return the error for copying a directory without `recursive`."""
    return InvalidRequest("fs/copy requires recursive: true when sourcePath is a directory")


def onto_itself(source: bytes) -> InvalidRequest:
    """Return the error for copying a file onto itself."""
    return InvalidRequest(f"fs/copy cannot copy the file `{display(source)}` onto itself")


def no_kind_to_copy() -> InvalidRequest:
    """Return the error for a source that is a FIFO, a socket or a device."""
    return InvalidRequest("fs/copy only supports regular files, directories, and symlinks")


def copied_bytes(source: bytes) -> int | None:
    """Return the size of a file to copy, 0 for a symlink, None for a directory or an unreadable path."""
    try:
        status = os.lstat(source)
    except OSError:
        return None
    if stat.S_ISREG(status.st_mode):
        return status.st_size
    return 0 if stat.S_ISLNK(status.st_mode) else None


def inside() -> InvalidRequest:
    """Return the error for copying a directory into itself."""
    return InvalidRequest("fs/copy cannot copy a directory to itself or one of its descendants")


def _refuse_inside(source: bytes, destination: bytes) -> None:
    real = canonicalize(source)
    target = _canonicalize_missing(destination)
    if target == real or target.startswith(real.rstrip(b"/") + b"/"):
        raise inside()


def _canonicalize_missing(path: bytes) -> bytes:
    """Resolve the symlinks of the part of a path that exists, and append the rest."""
    rest = b""
    while True:
        try:
            return os.path.join(canonicalize(path), rest) if rest else canonicalize(path)
        except OSError:
            path, name = os.path.split(path)
            if not name:
                raise
            rest = os.path.join(name, rest) if rest else name


def copy_file(
    source: bytes, target: bytes, source_fd: int | None, target_fd: int | None, options: CopyOptions
) -> bool:
    """Copy one regular file, names relative to the two directories; return False if both are one file."""
    reading = open_entry(source, source_fd)
    try:
        mode = stat.S_IMODE(os.fstat(reading).st_mode)
    except BaseException:
        os.close(reading)
        raise
    return copy_opened(reading, lambda: open_target(target, mode, target_fd), options)


def copy_opened(reading: int, open_writing: Callable[[], int], options: CopyOptions) -> bool:
    """Copy an open regular file into what `open_writing` opens, and close both.

    Returns False, and copies nothing, if both are the same file.
    """
    try:
        status = os.fstat(reading)
        mode = stat.S_IMODE(status.st_mode)
        writing = open_writing()
        try:
            there = os.fstat(writing)
            if os.path.samestat(status, there):  # also through symlinks and hard links
                return False
            if not stat.S_ISREG(there.st_mode):
                copy_to_device(reading, writing, options.device_timeout_s, options.pause)
                return True
            # Holes take no room.  More blocks than the size were allocated in advance.
            stored = min(status.st_size, status.st_blocks * 512)
            if stored > CHECKED_BYTES:
                pause, size = options.pause, status.st_size
                refuse_without_room(writing, stored, status.st_dev, lambda: data_bytes(reading, size, pause))
            # Before the data: whoever may not read the source must not read the copy, either.
            if stat.S_IMODE(there.st_mode) != mode:
                os.fchmod(writing, mode)
            _copy_content(reading, writing, (status, there), options.pause)
        finally:
            os.close(writing)
    finally:
        os.close(reading)
    return True


def _copy_content(
    reading: int, writing: int, statuses: tuple[os.stat_result, os.stat_result], pause: Pause
) -> None:
    """Copy the bytes of one regular file over those of another, and its holes."""
    status, there = statuses
    size = status.st_size
    try:
        if has_holes(reading, status):
            if there.st_size:
                os.ftruncate(writing, 0)  # the old content must not show through the holes
            copy_sparse(reading, writing, size, pause)
        else:
            copy_data(reading, writing, size, pause)
    except OSError as error:
        give_back(writing, error, there.st_size)
        raise
    finally:  # also after a failure: no old bytes may follow new ones
        cut_behind(writing, there.st_size)


class TreeCopy:
    """One copy of one tree into an existing directory; each is given as a stack that begins there."""

    def __init__(self, options: CopyOptions) -> None:
        self._options = options

    def run(self, origin: DirectoryStack, target: DirectoryStack) -> None:
        """Copy everything below the current directory of `origin` to the current directory of `target`."""
        self._refuse_cycle(origin, target)
        # For each level the directories still to enter: a stack of our own, so that depth is not limited.
        pending = [self._copy_entries(origin.fd, target.fd)]
        while pending:
            if pending[-1]:
                name = pending[-1].pop()
                origin.enter(name)
                self._refuse_cycle(origin, target)
                self._make_directory(name, target.fd)
                target.enter(name, follow=True)
                pending.append(self._copy_entries(origin.fd, target.fd))
                continue
            pending.pop()
            if pending:
                origin.leave()
                target.leave()

    @staticmethod
    def _refuse_cycle(origin: DirectoryStack, target: DirectoryStack) -> None:
        """Stop before reading what was just written: symlinks or mounts may join the trees further down."""
        if target.holds(origin.identity):
            raise inside()

    def _make_directory(self, name: bytes, fd: int) -> None:
        try:
            os.mkdir(name, _NEW_DIRECTORY_MODE, dir_fd=fd)
        except FileExistsError:
            # Merging follows a symlink to a directory, as the reference server does.
            if not _is_directory(name, fd):
                raise

    def _copy_file(self, name: bytes, source: int, target: int) -> None:
        copy_file(name, name, source, target, self._options)

    def _copy_link(self, name: bytes, source: int, target: int) -> None:
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)

    def _copy_entries(self, source: int, target: int) -> list[bytes]:
        """Copy files and symlinks of one directory; return the names of the directories in it.

        Skips other kinds, and files that are one and the same in both trees.
        """
        directories = []
        with os.scandir(source) as entries:
            for entry in entries:
                name = os.fsencode(entry.name)
                if entry.is_file(follow_symlinks=False):
                    self._copy_file(name, source, target)
                elif entry.is_dir(follow_symlinks=False):
                    directories.append(name)
                elif entry.is_symlink():
                    self._copy_link(name, source, target)
                self._options.pause()
        return directories


def _is_directory(name: bytes, fd: int) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=fd).st_mode)
    except OSError:
        return False
