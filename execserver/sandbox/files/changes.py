"""Changes to names, modes and times inside a sandbox root, with paths resolved by the path guard.

A directory is not renamed: what the policy says about names below it would no longer be about them.
"""

from __future__ import annotations

import os
import stat

from execserver.files import change
from execserver.protocol.errors import InvalidRequest
from execserver.protocol.paths import display
from execserver.sandbox.files.guard import READ, REMOVE, WRITE, PathGuard, ResolvedName


def rename(guard: PathGuard, source: bytes, target: bytes, replace: bool) -> None:
    """Give a file or a symlink another name."""
    with guard.find(source, REMOVE, follow=False) as old, guard.find(target, WRITE, follow=False) as new:
        status = old.status()
        # Both: whoever may not read a file must not get it by another name, nor take a protected one away.
        guard.check_resolved(old, status, READ)
        guard.check_resolved(old, status, WRITE)
        guard.check_pattern(old.path)
        guard.check_pattern(new.path)
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
            raise InvalidRequest(f"a sandbox renames files and symlinks only, not `{display(old.path)}`")
        _check_target(guard, new)
        change.rename((old.name, old.fd), (new.name, new.fd), replace)


def _check_target(guard: PathGuard, new: ResolvedName) -> None:
    try:
        status = new.status()
    except FileNotFoundError:
        return
    guard.check_resolved(new, status, WRITE)


def chmod(guard: PathGuard, path: bytes, mode: int, *, links: bool = True) -> None:
    """Set the permissions of a file or directory.  Without `links` any symlink in the path is an error."""
    with guard.find(path, WRITE, follow=links, links=links) as resolved:
        _check(guard, resolved)
        change.chmod((resolved.name, resolved.fd), mode)


def touch(guard: PathGuard, path: bytes, times: change.Times, *, links: bool = True) -> None:
    """Set the times of what is there.  Without `links` a symlink on the way is an error."""
    with guard.find(path, WRITE, follow=links, links=links) as resolved:
        _check(guard, resolved)
        change.touch((resolved.name, resolved.fd), times)


def look(guard: PathGuard, path: bytes) -> change.Look:
    """Return what `change.look` does."""
    with guard.find(path, READ, follow=False) as resolved:
        guard.check_resolved(resolved, resolved.status())
        guard.check_pattern(resolved.path)
        return change.look((resolved.name, resolved.fd))


def symlink(guard: PathGuard, text: bytes, path: bytes) -> None:
    """Make a symlink; no symlink is followed on the way."""
    with guard.find(path, WRITE, follow=False, links=False) as resolved:
        guard.check_pattern(resolved.path)
        os.symlink(text, resolved.name, dir_fd=resolved.fd)


def _check(guard: PathGuard, resolved: ResolvedName) -> None:
    guard.check_resolved(resolved, resolved.status(), WRITE)
    guard.check_pattern(resolved.path)
