"""Stale mask cleanup: removes mask targets whose owner has died, by the records that it left."""

from __future__ import annotations

import os

from execserver.sandbox.masks.files import (
    NotEmpty,
    identity_of,
    may_be_own_mask_target,
    open_empty,
    open_parent,
    remove_if_still,
)
from execserver.sandbox.masks.records import (
    GOING,
    MADE,
    USED,
    DeadOwner,
    MaskRecord,
    dead_owners,
    is_recorded,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def clean(folder: bytes, places: Sequence[bytes] = ()) -> None:
    """Remove the mask targets of dead owners unless a living owner uses them; never raises OSError.

    `folder` has the records of the dead owners, `places` are all folders with records of living ones.
    """
    for owner in dead_owners(folder):
        _clean_after(owner, (folder, *places))
        owner.close()


def _clean_after(owner: DeadOwner, places: Sequence[bytes]) -> None:
    try:
        for record, path, directory in owner.records():
            try:
                removed = remove_recorded(record, path, directory, places, owner.path)
            except OSError:
                removed = False
            # A record that stays is tried again by the next cleanup: its mask target may be in use now.
            if removed:
                record.drop()
    except OSError:
        return  # the records themselves cannot be read


def remove_recorded(
    record: MaskRecord, path: bytes, directory: bool, places: Sequence[bytes], own_place: bytes
) -> bool:
    """Remove what was made for a record unless it is used; return whether the record may be dropped.

    `places` are the folders with records of living owners, `own_place` the one that `record` is in.
    Raises OSError.
    """
    try:
        # The record does not say which directory it was; the identity of the object decides below.
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
            # A record without identity: its owner was killed between making the object and recording its
            # identity.  Records can be old or forged, so the object must also look like a mask target.
            if not may_be_own_mask_target(found) or record.identity not in (None, identity):
                return True
            # First say that it is going, then look for users.  A user does it the other way round, so one of
            # the two always sees the other.
            record.change(GOING, identity)
            if is_recorded(places, identity, (MADE, USED), own_place):
                # Removed now, it would take the mask away from a running command.
                record.change(MADE)
                return False
            remove_if_still(parent_fd, name, identity)
            return True
        finally:
            os.close(fd)
    except NotEmpty:
        return True  # somebody put something there: it is theirs
    finally:
        os.close(parent_fd)
