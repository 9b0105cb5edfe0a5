"""Cleaning up after owners of placeholders that have died, by the records they left."""

from __future__ import annotations

import os

from execserver.sandbox.placeholder_files import (
    NotEmpty,
    identity_of,
    may_be_own_placeholder,
    open_empty,
    open_parent,
    remove_if_still,
)
from execserver.sandbox.placeholder_records import GOING, MADE, USED, DeadOwner, Note, dead_owners, is_noted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def clean(folder: bytes, places: Sequence[bytes] = ()) -> None:
    """Remove the placeholders of owners that have died, as far as no view uses them; never raises OSError.

    `folder` has the records of the dead, `places` all folders with those of the living.
    """
    for owner in dead_owners(folder):
        _clean_after(owner, (folder, *places))
        owner.close()


def _clean_after(owner: DeadOwner, places: Sequence[bytes]) -> None:
    try:
        for note, path, directory in owner.records():
            try:
                removed = remove_recorded(note, path, directory, places, owner.path)
            except OSError:
                removed = False
            if removed:
                note.drop()
    except OSError:
        return  # the records themselves cannot be read


def remove_recorded(
    note: Note, path: bytes, directory: bool, places: Sequence[bytes], own_place: bytes
) -> bool:
    """Remove what was made for a record unless it is used; return whether its record has served."""
    try:
        parent_fd = open_parent(path, None)
    except (FileNotFoundError, NotADirectoryError):
        return True
    name = os.path.basename(path)
    try:
        fd = open_empty(parent_fd, name, directory)
        if fd is None:
            return True
        try:
            found = os.fstat(fd)
            identity = identity_of(found)
            # Without an identity its owner was killed between making it and noting which object it is.
            if not may_be_own_placeholder(found) or note.identity not in (None, identity):
                return True
            note.change(GOING, identity)
            if is_noted(places, identity, (MADE, USED), own_place):
                note.change(MADE)
                return False
            remove_if_still(parent_fd, name, identity)
            return True
        finally:
            os.close(fd)
    except NotEmpty:
        return True
    finally:
        os.close(parent_fd)
