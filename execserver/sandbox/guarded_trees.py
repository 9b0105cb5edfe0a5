"""Copying, removing and listing whole trees inside a view, every entry checked by the Guard.

They are the operations of `execserver.files` with their steps replaced: going into a directory, opening a
file and making a name ask the guard first, and know the link-free path of where they are.
"""

from __future__ import annotations

import errno
import os
import stat

from execserver.files.chain import DirectoryChain
from execserver.files.copy import TreeCopy, copy_opened
from execserver.files.opening import open_entry
from execserver.files.remove import TreeRemoval
from execserver.files.walk import Walk
from execserver.sandbox.guarded import READ, REMOVE, Guard, Place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.files.copy import CopyOptions
    from execserver.files.pausing import Pause
    from execserver.files.walk import WalkOptions
    from execserver.sandbox.guarded_files import GuardedFiles

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class GuardedChain(DirectoryChain):
    """A way down a tree that asks the guard at every step and knows its link-free path."""

    __slots__ = ("_guard", "_linked", "_paths", "_wanted")

    def __init__(self, guard: Guard, place: Place, wanted: int) -> None:
        """Open the directory at a place; a link there is an error."""
        super().__init__(place.name, dir_fd=place.fd)
        self._guard = guard
        self._wanted = wanted
        self._paths = [place.path.rstrip(b"/")]
        self._linked = b""
        try:
            guard.check_opened(self.fd, place.path)
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> bytes:
        """The link-free path of the current directory, empty for the root."""
        return self._paths[-1]

    def check(self, name: bytes) -> bytes:
        """Check a name in the current directory; return its path."""
        path = self._paths[-1] + b"/" + name
        self._guard.check_entry(self.fd, name, path, self._wanted)
        return path

    def enter(self, name: bytes, follow: bool = False) -> None:
        """Go down into a directory, through a link only with `follow`."""
        path = self.check(name)
        self._linked = b""
        super().enter(name, follow)
        self._paths.append(self._linked or path)
        self._guard.check_opened(self.fd, self.path)

    def leave(self) -> None:
        """Go up."""
        self._paths.pop()
        super().leave()

    def _open_linked(self, name: bytes) -> int:
        with self._guard.find(self._paths[-1] + b"/" + name, self._wanted) as place:
            self._guard.check_pattern(place.path)
            self._linked = place.path
            return os.open(place.name, _DIRECTORY, dir_fd=place.fd)


class GuardedCopy(TreeCopy):
    """One copy of one tree between two guarded chains."""

    def __init__(
        self, files: GuardedFiles, origin: GuardedChain, target: GuardedChain, options: CopyOptions
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
            mode = stat.S_IMODE(os.fstat(reading).st_mode)
        except BaseException:
            os.close(reading)
            raise
        copy_opened(reading, lambda: self._open_target(name, target, mode), self._options)

    def _open_target(self, name: bytes, target: int, mode: int) -> int:
        path = self._target.check(name)
        try:
            return self._files.open_target_at(Place(target, name, path, keep=True), path, mode)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        return self._files.open_target(path, mode)  # a link there is followed, as everywhere

    def _copy_link(self, name: bytes, source: int, target: int) -> None:
        self._origin.check(name)
        self._target.check(name)
        super()._copy_link(name, source, target)

    def _make_directory(self, name: bytes, fd: int) -> None:
        self._target.check(name)
        super()._make_directory(name, fd)


class GuardedRemoval(TreeRemoval):
    """One removal of one tree."""

    def __init__(self, guard: Guard, place: Place, pause: Pause) -> None:
        super().__init__(pause, place.fd)
        self._guard = guard
        self._place = place
        self._now: GuardedChain | None = None

    def _chain(self, root: bytes) -> DirectoryChain:
        self._now = GuardedChain(self._guard, self._place, REMOVE)
        return self._now

    def _unlink(self, name: bytes, fd: int) -> bool:
        self._check(name, fd)
        return super()._unlink(name, fd)

    def _rmdir(self, name: bytes, fd: int | None) -> bool:
        self._check(name, fd)
        return super()._rmdir(name, fd)

    def _check(self, name: bytes, fd: int | None) -> None:
        # The directory the removal began with was checked when it was found.
        if self._now is not None and fd == self._now.fd:
            self._now.check(name)


class GuardedWalk(Walk):
    """One walk.  Owns the descriptor of the directory it lists until `close`."""

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
        with guard.find(root, READ) as place:
            status = place.status()
            guard.check_place(place, status)
        with guard.find(root, READ, follow=False) as place:
            return status, stat.S_ISLNK(place.status().st_mode)

    def _scan(self, path: bytes) -> tuple[list[os.DirEntry[bytes]], bool]:
        self.close()
        guard = self._files.guard
        with guard.find(path, READ) as place:
            guard.check_pattern(place.path)
            self._fd = self._files.open_directory(place)
        # By this name the entries are asked for their kind relative to the descriptor.
        return super()._scan(b"/proc/self/fd/%d" % self._fd)
