"""The operations of `files.no_links` inside a view: no link in a path, and everything the guard refuses."""

from __future__ import annotations

import os

from execserver.files import no_links
from execserver.files.birth_time import birth_time_ms
from execserver.files.metadata import described
from execserver.files.opening import NEW_FILE_MODE
from execserver.sandbox.guarded import READ, REMOVE, WRITE, Guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.guarded_files import GuardedFiles


def open_regular(guard: Guard, path: bytes) -> int:
    """Open a regular file for reading; the caller owns the descriptor."""
    with guard.find(path, READ, follow=False, links=False) as place:
        status = place.status()
        guard.check_place(place, status)
        guard.check_pattern(place.path)
        fd = no_links.open_regular_at(place.fd, place.name, status)
    try:
        guard.check_opened(fd, place.path, READ)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_target(files: GuardedFiles, path: bytes) -> int:
    """Open a regular file, or a device that keeps nothing, for writing; the caller owns the descriptor."""
    with files.guard.find(path, WRITE, follow=False, links=False) as place:
        files.guard.check_pattern(place.path)
        return files.open_target_at(place, path, NEW_FILE_MODE)


def create_directory(guard: Guard, path: bytes, recursive: bool) -> None:
    """Make a directory; with `recursive` also its parents, and an existing one is fine."""
    with guard.find(path, WRITE, follow=False, make=recursive, links=False) as place:
        guard.check_pattern(place.path)
        no_links.create_directory_at(place.fd, place.name, recursive)


def get_metadata(guard: Guard, path: bytes) -> tuple[tuple[bool, bool, bool, int, int], int]:
    """Return what `no_links.get_metadata` does; a file that a deny pattern hides is an empty one."""
    with guard.find(path, READ, follow=False, links=False) as place:
        status = place.status()
        guard.check_place(place, status)
        no_links.refuse_named_link(status)
        if guard.hides(place.path):
            return (False, True, False, 0, 0), 0
        return described(status, is_link=False), birth_time_ms(place.fd, place.name)


def remove(guard: Guard, path: bytes, recursive: bool, force: bool) -> None:
    """Remove a file or an empty directory; a missing one is fine with `force`."""
    if recursive:
        raise no_links.recursive_removal()
    try:
        with guard.find(path, REMOVE, follow=False, links=False) as place:
            status = place.status()
            guard.check_place(place, status)
            guard.check_pattern(place.path)
            no_links.remove_at(place.fd, place.name, status)
    except FileNotFoundError:
        if not force:
            raise
