"""The operations of `files.no_symlinks` inside a sandbox root: no symlinks, and the guard is asked."""

from __future__ import annotations

import os

from execserver.files import no_symlinks
from execserver.files.birth_time import birth_time_ms
from execserver.files.metadata import described
from execserver.files.opening import NEW_FILE_MODE
from execserver.sandbox.files.guard import READ, REMOVE, WRITE, PathGuard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.files.operations import GuardedFiles


def open_regular(guard: PathGuard, path: bytes) -> int:
    """Open a regular file for reading; the caller owns the descriptor."""
    with guard.find(path, READ, follow=False, links=False) as resolved:
        status = resolved.status()
        guard.check_resolved(resolved, status)
        guard.check_pattern(resolved.path)
        fd = no_symlinks.open_regular_at(resolved.fd, resolved.name, status)
    try:
        guard.check_opened(fd, resolved.path, READ)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_folder(files: GuardedFiles, path: bytes) -> int:
    """Open a directory for listing; the caller owns the descriptor."""
    with files.guard.find(path, READ, follow=False, links=False) as resolved:
        files.guard.check_pattern(resolved.path)
        return files.open_directory(resolved)


def open_target(files: GuardedFiles, path: bytes) -> int:
    """Open a regular file, or a device that keeps nothing, for writing; the caller owns the descriptor."""
    with files.guard.find(path, WRITE, follow=False, links=False) as resolved:
        files.guard.check_pattern(resolved.path)
        return files.open_target_at(resolved, path, NEW_FILE_MODE)


def create_directory(guard: PathGuard, path: bytes, recursive: bool) -> None:
    """Make a directory; with `recursive` also its parents, and an existing one is fine."""
    with guard.find(path, WRITE, follow=False, make=recursive, links=False) as resolved:
        guard.check_pattern(resolved.path)
        no_symlinks.create_directory_at(resolved.fd, resolved.name, recursive)


def get_metadata(guard: PathGuard, path: bytes) -> tuple[tuple[bool, bool, bool, int, int], int]:
    """Return what `no_symlinks.get_metadata` does; a file that a deny pattern hides looks empty."""
    with guard.find(path, READ, follow=False, links=False) as resolved:
        status = resolved.status()
        guard.check_resolved(resolved, status)
        no_symlinks.refuse_named_link(status)
        if guard.hides(resolved.path):
            return (False, True, False, 0, 0), 0
        return described(status, is_link=False), birth_time_ms(resolved.fd, resolved.name)


def remove(guard: PathGuard, path: bytes, recursive: bool, force: bool) -> None:
    """Remove a file or an empty directory; a missing one is fine with `force`."""
    if recursive:
        raise no_symlinks.recursive_removal()
    try:
        with guard.find(path, REMOVE, follow=False, links=False) as resolved:
            status = resolved.status()
            guard.check_resolved(resolved, status)
            guard.check_pattern(resolved.path)
            no_symlinks.remove_at(resolved.fd, resolved.name, status)
    except FileNotFoundError:
        if not force:
            raise
