"""Copies, removes and lists whole trees inside a sandbox root; the path guard checks every entry.

The operations are those of `execserver.files` with some steps replaced.  Entering a directory, opening a file
and making a name ask the guard first, and know their current path without symlinks.
"""

from __future__ import annotations

import errno
import os
import stat

from execserver.files.copy import TreeCopy, copy_opened
from execserver.files.directory_stack import DirectoryStack
from execserver.files.opening import open_entry
from execserver.files.remove import TreeRemoval
from execserver.files.walk import Walk
from execserver.sandbox.files.guard import READ, REMOVE, PathGuard, ResolvedName

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.files.copy import CopyOptions
    from execserver.files.walk import WalkOptions
    from execserver.files.yielding import Pause
    from execserver.sandbox.files.operations import GuardedFiles

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class GuardedStack(DirectoryStack):
    """A directory descriptor stack that asks the guard at every step and knows its path without symlinks."""

    __slots__ = ("_guard", "_linked", "_paths", "_wanted")

    def __init__(self, guard: PathGuard, resolved: ResolvedName, wanted: int) -> None:
        """Open the directory of a resolved path; a symlink there is an error.

        `wanted` says what for: READ, WRITE or REMOVE.  Raises OSError, or Denied.
        """
        super().__init__(resolved.name, dir_fd=resolved.fd)
        self._guard = guard
        self._wanted = wanted
        self._paths = [resolved.path.rstrip(b"/")]  # one for each level
        self._linked = b""  # where `_open_linked` went, within one `enter`
        try:
            # The descriptor: another directory may have got the name since it was resolved.
            guard.check_opened(self.fd, resolved.path)
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> bytes:
        """The path of the current directory, without symlinks; empty for the root."""
        return self._paths[-1]

    def check(self, name: bytes) -> bytes:
        """Check a name in the current directory; return its path.  Raises OSError, or Denied."""
        path = self._paths[-1] + b"/" + name
        self._guard.check_entry(self.fd, name, path, self._wanted)
        return path

    def enter(self, name: bytes, follow: bool = False) -> None:
        """Go down into a directory, through a symlink only with `follow`."""
        path = self.check(name)
        self._linked = b""
        super().enter(name, follow)
        # What lies below a symlink is judged by the target's path, or a symlink would get around a pattern.
        self._paths.append(self._linked or path)
        # Again by descriptor: the name was checked before it was opened.
        self._guard.check_opened(self.fd, self.path)

    def leave(self) -> None:
        """Go up."""
        self._paths.pop()
        super().leave()

    def _open_linked(self, name: bytes) -> int:
        # Not left to the kernel, which would follow it into what only the guard withholds.
        with self._guard.find(self._paths[-1] + b"/" + name, self._wanted) as resolved:
            self._guard.check_pattern(resolved.path)
            self._linked = resolved.path
            return os.open(resolved.name, _DIRECTORY, dir_fd=resolved.fd)


class GuardedCopy(TreeCopy):
    """One copy of one tree, from one guarded descriptor stack to another."""

    def __init__(
        self, files: GuardedFiles, origin: GuardedStack, target: GuardedStack, options: CopyOptions
    ) -> None:
        super().__init__(options)
        self._files = files
        self._origin = origin
        self._target = target

    def _copy_file(self, name: bytes, source: int, target: int) -> None:
        path = self._origin.check(name)
        reading = open_entry(name, source)
        try:
            self._files.guard.check_opened(reading, path)
            # Of the opened file: the name may stand for another one by now.
            mode = stat.S_IMODE(os.fstat(reading).st_mode)
        except BaseException:
            os.close(reading)
            raise
        copy_opened(reading, lambda: self._open_target(name, target, mode), self._options)

    def _open_target(self, name: bytes, target: int, mode: int) -> int:
        path = self._target.check(name)
        try:
            # `keep`: the descriptor stack owns the directory.
            return self._files.open_target_at(ResolvedName(target, name, path, keep=True), path, mode)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        # A symlink in the target is followed, as the unguarded copy does, but with the guard asked.
        return self._files.open_target(path, mode)

    def _copy_link(self, name: bytes, source: int, target: int) -> None:
        # The text of a symlink is copied, never its target: whoever follows the copy is checked then.
        self._origin.check(name)
        self._target.check(name)
        super()._copy_link(name, source, target)

    def _make_directory(self, name: bytes, fd: int) -> None:
        self._target.check(name)
        super()._make_directory(name, fd)


class GuardedRemoval(TreeRemoval):
    """One removal of one tree."""

    def __init__(self, guard: PathGuard, resolved: ResolvedName, pause: Pause) -> None:
        super().__init__(pause, resolved.fd)
        self._guard = guard
        self._resolved = resolved
        self._now: GuardedStack | None = None  # the stack of this pass; each pass begins at the root again

    def _stack(self, root: bytes) -> DirectoryStack:
        self._now = GuardedStack(self._guard, self._resolved, REMOVE)
        return self._now

    def _unlink(self, name: bytes, fd: int) -> bool:
        self._check(name, fd)
        return super()._unlink(name, fd)

    def _rmdir(self, name: bytes, fd: int | None) -> bool:
        self._check(name, fd)
        return super()._rmdir(name, fd)

    def _check(self, name: bytes, fd: int | None) -> None:
        # Any other descriptor belongs to the root of the removal, which was checked when it was resolved.
        if self._now is not None and fd == self._now.fd:
            self._now.check(name)


class GuardedWalk(Walk):
    """One walk.  Owns the descriptor of the directory that it listed last until `close`."""

    def __init__(self, files: GuardedFiles, options: WalkOptions, pause: Pause) -> None:
        super().__init__(options, pause)
        self._files = files
        self._fd = -1

    def close(self) -> None:
        """Close the directory listed last."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _look(self, root: bytes) -> tuple[os.stat_result, bool]:
        guard = self._files.guard
        with guard.find(root, READ) as resolved:
            status = resolved.status()
            guard.check_resolved(resolved, status)
        # Once more without following: a root that is a symlink is listed only if the walk follows them.
        with guard.find(root, READ, follow=False) as resolved:
            return status, stat.S_ISLNK(resolved.status().st_mode)

    def _scan(self, path: bytes) -> tuple[list[os.DirEntry[bytes]], bool]:
        # Only now: the entries of the last directory were asked for their kind through its descriptor.
        self.close()
        guard = self._files.guard
        with guard.find(path, READ) as resolved:
            guard.check_pattern(resolved.path)
            self._fd = self._files.open_directory(resolved)
        # By this name scandir's entries are looked up below the descriptor, not by a path that may change.
        return super()._scan(b"/proc/self/fd/%d" % self._fd)
