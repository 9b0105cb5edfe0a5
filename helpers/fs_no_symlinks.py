"""The file operations in no-symlinks mode (`followSymlinks` is false), without a sandbox and in one."""

from __future__ import annotations

from execserver.files import no_symlinks
from execserver.sandbox.files import guarded_no_symlinks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.files.operations import GuardedFiles


class PathsWithoutSymlinks:
    """The operations that have the mode, under the names of the usual ones."""

    def __init__(self, guarded: GuardedFiles | None) -> None:
        self._guarded = guarded

    def open_regular(self, path: bytes) -> int:
        """Open a regular file for reading."""
        if self._guarded is None:
            return no_symlinks.open_regular(path)
        return guarded_no_symlinks.open_regular(self._guarded.guard, path)

    def open_target(self, path: bytes) -> int:
        """Open a file or a device for writing."""
        if self._guarded is None:
            return no_symlinks.open_target(path)
        return guarded_no_symlinks.open_target(self._guarded, path)

    def create_directory(self, path: bytes, recursive: bool) -> None:
        """Make a directory, with `recursive` also its parents."""
        if self._guarded is None:
            no_symlinks.create_directory(path, recursive)
            return
        guarded_no_symlinks.create_directory(self._guarded.guard, path, recursive)

    def get_metadata(self, path: bytes) -> tuple[tuple[bool, bool, bool, int, int], int]:
        """Return is_directory, is_file, is_symlink, size, time of modification; time of birth in ms."""
        if self._guarded is None:
            return no_symlinks.get_metadata(path)
        return guarded_no_symlinks.get_metadata(self._guarded.guard, path)

    def remove(self, path: bytes, recursive: bool, force: bool) -> None:
        """Remove a file or an empty directory."""
        if self._guarded is None:
            no_symlinks.remove(path, recursive, force)
            return
        guarded_no_symlinks.remove(self._guarded.guard, path, recursive, force)
