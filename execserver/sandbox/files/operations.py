"""File operations inside a sandbox root: those of `execserver.files`, with paths resolved by the path guard.

Each works relative to the descriptor of the parent directory and follows no symlink by itself.  A name that
becomes a symlink meanwhile is resolved anew.  Errors and texts are those of the unguarded operations, plus
the guard's refusals.  Nothing here ever waits for a FIFO or a device.
"""

from __future__ import annotations

import errno
import os
import stat

from execserver.files import copy as copying
from execserver.files import metadata, opening
from execserver.files.yielding import no_pause
from execserver.protocol.errors import InvalidRequest
from execserver.protocol.paths import display
from execserver.sandbox.files import trees
from execserver.sandbox.files.guard import MAX_LINKS, READ, REMOVE, WRITE, Denied, PathGuard, ResolvedName

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from execserver.files.copy import CopyOptions
    from execserver.files.walk import Walk, WalkOptions
    from execserver.files.yielding import Pause

    T = TypeVar("T")

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TARGET = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | opening.ALWAYS
_NEW_DIRECTORY_MODE = 0o777
# null, zero and full: they take everything at once and keep nothing.  The server checks for these, too.
_HARMLESS_DEVICES = frozenset(os.makedev(1, minor) for minor in (3, 5, 7))


class GuardedFiles:
    """File operations on absolute paths under the rules of one guard."""

    def __init__(self, guard: PathGuard) -> None:
        self.guard = guard

    # --- opening -----------------------------------------------------------------------------------------

    def open_regular(self, path: bytes) -> int:
        """Open a regular file for reading; the caller owns the descriptor."""
        return self._again(lambda: self._open_for_reading(path))

    def open_replace(self, path: bytes) -> int:
        """Create a regular file, or empty it, for writing; the caller owns the descriptor."""
        return opening.emptied(self.open_target(path), path)

    def open_target(self, path: bytes, mode: int = opening.NEW_FILE_MODE) -> int:
        """Open a regular file, or a device that keeps nothing, for writing; the caller owns the descriptor.

        It is not emptied; a new file gets `mode`.
        """
        return self._again(lambda: self._open_for_writing(path, mode))

    def _open_for_reading(self, path: bytes) -> int:
        with self.guard.find(path, READ) as resolved:
            status = resolved.status()
            self.guard.check_resolved(resolved, status)
            self.guard.check_pattern(resolved.path)
            if not stat.S_ISREG(status.st_mode) and not stat.S_ISSOCK(status.st_mode):
                raise opening.refused_for_reading(path, resolved.name, resolved.fd)
            fd = os.open(resolved.name, os.O_RDONLY | os.O_NOFOLLOW | opening.ALWAYS, dir_fd=resolved.fd)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise opening.not_a_file(path)
            self.guard.check_opened(fd, resolved.path, READ, status)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _open_for_writing(self, path: bytes, mode: int) -> int:
        with self.guard.find(path, WRITE) as resolved:
            self.guard.check_pattern(resolved.path)
            return self.open_target_at(resolved, path, mode)

    def open_target_at(self, resolved: ResolvedName, shown: bytes, mode: int) -> int:
        """Open or create a file at a resolved path for writing; the caller owns the descriptor.

        `shown` is the path for error texts; a new file gets `mode`.  Raises OSError ELOOP for a symlink.
        """
        try:
            status = resolved.status()
        except FileNotFoundError:
            pass  # to be created
        else:
            # Before the open, which acts on some files.  After it again: the name may have another file then.
            self.guard.check_resolved(resolved, status, WRITE)
            _check_kind(status, shown)
        fd = os.open(resolved.name, _TARGET, mode, dir_fd=resolved.fd)
        try:
            status = os.fstat(fd)
            _check_kind(status, shown)
            self.guard.check_opened(fd, resolved.path, WRITE, status)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _again(self, function: Callable[[], T]) -> T:
        """Call a function again when a name became a symlink after it was resolved (ELOOP)."""
        for _ in range(MAX_LINKS):
            try:
                return function()
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
        return function()

    # --- short operations --------------------------------------------------------------------------------

    def get_metadata(self, path: bytes) -> tuple[bool, bool, bool, int, int]:
        """Return what `metadata.get_metadata` does; a file that a deny pattern hides looks empty."""
        return self._again(lambda: self._look(path))

    def _look(self, path: bytes) -> tuple[bool, bool, bool, int, int]:
        with self.guard.find(path, READ, follow=False) as resolved:
            status = self._checked_status(resolved)
        is_link = stat.S_ISLNK(status.st_mode)
        if is_link:
            with self.guard.find(path, READ) as resolved:
                status = self._checked_status(resolved)
            if stat.S_ISLNK(status.st_mode):  # it became one after it was followed: `_again` sees to it
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if self.guard.hides(resolved.path):
            return False, True, is_link, 0, 0  # as a file that a mask covers
        return metadata.described(status, is_link)

    def _checked_status(self, resolved: ResolvedName) -> os.stat_result:
        status = resolved.status()
        self.guard.check_resolved(resolved, status)
        return status

    def canonicalize(self, path: bytes) -> bytes:
        """Return the absolute path without symlinks; it must exist."""
        with self.guard.find(path, READ) as resolved:
            self._checked_status(resolved)
            return resolved.path

    def create_directory(self, path: bytes, recursive: bool) -> None:
        """Make a directory; with `recursive` also its parents, and an existing one is fine."""
        with self.guard.find(path, WRITE, follow=False, make=recursive) as resolved:
            self.guard.check_pattern(resolved.path)
            try:
                os.mkdir(resolved.name, _NEW_DIRECTORY_MODE, dir_fd=resolved.fd)
            except OSError:
                # The last name is not followed by mkdir, but a symlink to a directory is fine here.
                if not recursive or not self._is_directory(path):
                    raise

    def _is_directory(self, path: bytes) -> bool:
        try:
            with self.guard.find(path, WRITE) as resolved:
                return stat.S_ISDIR(resolved.status().st_mode)
        except OSError:
            return False

    def read_directory(self, path: bytes, pause: Pause = no_pause) -> list[tuple[str, bool, bool]]:
        """Return name, is_directory, is_file of every entry, also of those a pattern hides."""
        with self.guard.find(path, READ) as resolved:
            fd = self.open_directory(resolved)
        try:
            # Through the descriptor, which was checked; the path may lead elsewhere by now.
            return metadata.read_directory(b"/proc/self/fd/%d" % fd, pause)
        finally:
            os.close(fd)

    def open_directory(self, resolved: ResolvedName) -> int:
        """Open the directory of a resolved path for listing; the caller owns the descriptor."""
        fd = os.open(resolved.name, _DIRECTORY, dir_fd=resolved.fd)
        try:
            self.guard.check_opened(fd, resolved.path)
        except BaseException:
            os.close(fd)
            raise
        return fd

    # --- trees -------------------------------------------------------------------------------------------

    def remove(self, path: bytes, recursive: bool, force: bool, pause: Pause = no_pause) -> None:
        """Remove a file, a symlink itself, or a directory; a missing path is fine with `force`."""
        try:
            with self.guard.find(path, REMOVE, follow=False) as resolved:
                status = self._checked_status(resolved)
                self.guard.check_pattern(resolved.path)
                # Before anything in it is removed; the unguarded operation does the same.
                if resolved.path == b"/":
                    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
                if not stat.S_ISDIR(status.st_mode):
                    os.unlink(resolved.name, dir_fd=resolved.fd)
                elif not recursive:
                    os.rmdir(resolved.name, dir_fd=resolved.fd)
                else:
                    self.guard.certain = False  # an error can be about any name in the tree
                    trees.GuardedRemoval(self.guard, resolved, pause).run(resolved.name)
        except FileNotFoundError:
            if not force:
                raise

    def copy(self, source: bytes, destination: bytes, recursive: bool, options: CopyOptions) -> None:
        """Copy a file, a symlink, or with `recursive` a directory, as `files.copy` does."""
        with self.guard.find(source, READ, follow=False) as origin:
            status = self._checked_status(origin)
            self.guard.check_pattern(origin.path)
            if stat.S_ISDIR(status.st_mode):
                if not recursive:
                    raise copying.directory_without_recursive()
                self._copy_tree(origin, destination, options)
            elif stat.S_ISLNK(status.st_mode):
                self._copy_link(os.readlink(origin.name, dir_fd=origin.fd), destination)
            elif stat.S_ISREG(status.st_mode):
                self._copy_file(origin, source, destination, options)
            else:
                raise copying.no_kind_to_copy()

    def _copy_link(self, text: bytes, destination: bytes) -> None:
        with self.guard.find(destination, WRITE, follow=False) as target:
            self.guard.check_pattern(target.path)
            os.symlink(text, target.name, dir_fd=target.fd)

    def _copy_file(
        self, origin: ResolvedName, source: bytes, destination: bytes, options: CopyOptions
    ) -> None:
        reading = opening.open_entry(origin.name, origin.fd)
        try:
            self.guard.check_opened(reading, origin.path)
            mode = stat.S_IMODE(os.fstat(reading).st_mode)
        except BaseException:
            os.close(reading)
            raise
        if not copying.copy_opened(reading, lambda: self.open_target(destination, mode), options):
            raise copying.onto_itself(source)

    def _copy_tree(self, origin: ResolvedName, destination: bytes, options: CopyOptions) -> None:
        # Before the target is made: a copy into itself would never end.
        target_path = self._real_or_missing(destination)
        if target_path == origin.path or target_path.startswith(origin.path.rstrip(b"/") + b"/"):
            raise copying.inside()
        self.guard.certain = False
        self.create_directory(destination, recursive=True)
        with self.guard.find(destination, WRITE) as target:
            stacks = trees.GuardedStack(self.guard, origin, READ)
            with stacks as from_, trees.GuardedStack(self.guard, target, WRITE) as to:
                trees.GuardedCopy(self, from_, to, options).run(from_, to)

    def _real_or_missing(self, path: bytes) -> bytes:
        """Resolve the symlinks in the existing part of a path, and add the rest."""
        rest = b""
        while True:
            try:
                with self.guard.find(path, READ) as resolved:
                    resolved.status()
                    return resolved.path.rstrip(b"/") + rest or b"/"
            except Denied:
                raise  # not a missing name: the part above it must not be asked for instead
            except OSError:
                path, name = os.path.split(path)
                if not name:
                    raise
                rest = b"/" + name + rest

    def walk(self, root: bytes, options: WalkOptions, pause: Pause = no_pause) -> Walk:
        """List what is below a directory."""
        walk = trees.GuardedWalk(self, options, pause)
        try:
            walk.run(root)
        finally:
            walk.close()
        return walk


def _check_kind(status: os.stat_result, path: bytes) -> None:
    """Raise InvalidRequest for what is never written: FIFOs, and devices but the harmless ones."""
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISCHR(status.st_mode) and status.st_rdev not in _HARMLESS_DEVICES:
        raise InvalidRequest(
            f"path `{display(path)}` is a device: a sandbox writes only files and the null devices"
        )
    opening.check_target(path, status.st_mode)
