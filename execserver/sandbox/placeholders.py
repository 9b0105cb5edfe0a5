"""Placeholders: what stands in the place of a protected path that does not exist, while a view hides it.

A view can only cover a name that exists, so an empty directory or file is made on the host before the view is
built and removed when the last view that needs it has ended.  Removing it earlier would drop the cover in
every view, so each owner notes what it uses where the other owners of this user look, and only who finds no
such note, and the object empty and still the one that was made, removes it.  What others hold (a lock, a
descriptor, a folder entered) decides nothing: a command inside can hold it, too.

Before a placeholder is made there is a record of it on disk; `clean` removes those whose owner has died.  An
empty protected object that is there already, perhaps the placeholder of another owner, is noted too and never
removed.  Of another user's owners nothing is known, so what may be a placeholder of theirs refuses the view.
Paths are walked without following links and used by descriptor.
"""

from __future__ import annotations

import os
import stat
import time

from execserver.sandbox.placeholder_cleaning import clean, remove_recorded
from execserver.sandbox.placeholder_files import (
    NotEmpty,
    PlaceholderError,
    identity_of,
    is_at,
    make,
    may_be_placeholder,
    nobody_may_create,
    open_empty,
    open_parent,
    remove_if_still,
)
from execserver.sandbox.placeholder_records import GOING, MADE, NEW, USED, Note, RecordFolder, refuse_others
from execserver.sandbox.plan import HIDDEN_DIRECTORY, HIDDEN_FILE, READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from execserver.sandbox.plan import Identity, Missing, ViewPlan

_WAIT_S = 0.25  # another owner takes microseconds to remove its placeholder
_PAUSE_S = 0.001
_MOST_SPENT = 48  # two descriptors each
_COVERED = (READ, HIDDEN_DIRECTORY, HIDDEN_FILE)


class _Held:
    """One object that is used: `fd` keeps its inode from being given out again, `parent_fd` is its folder."""

    __slots__ = ("fd", "identity", "name", "note", "parent_fd", "proven", "users")

    def __init__(self, fd: int, parent_fd: int, name: bytes, identity: Identity, note: Note) -> None:
        self.fd = fd
        self.parent_fd = parent_fd
        self.name = name
        self.identity = identity
        self.note = note
        self.proven = False  # nobody who began to remove it before it was noted will
        self.users = 0

    @property
    def ours(self) -> bool:
        """True for what this owner made, and so removes."""
        return self.note.state != USED

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.parent_fd)


class Lease:
    """The placeholders of one view; given back with `Placeholders.release`, once.

    `covered` are the missing paths of the plan that have a placeholder now; the view mounts on these.  The
    others nobody inside can create: the kernel refuses it already.
    """

    __slots__ = ("covered", "held")

    def __init__(self) -> None:
        self.covered: list[Missing] = []
        self.held: list[_Held] = []


class Placeholders:
    """All placeholders of one owner.  Without a folder for records every plan that needs one is refused.

    `places` are all folders where other owners of this user may keep their records.
    """

    def __init__(self, folder: bytes | None, places: Sequence[bytes] = ()) -> None:
        self._records = None if folder is None else RecordFolder(folder, places)
        self._held: dict[tuple[int, int], _Held] = {}
        self._by_path: dict[bytes, _Held] = {}  # those that cover a missing path now
        self._pending: list[_Held] = []
        self._spent: list[_Held] = []  # removed, but not closed: the last close of an inode may take long

    @property
    def pending(self) -> bool:
        """True while placeholders of ours wait for other owners' views, or to be closed; `retry` soon."""
        return bool(self._pending or self._spent)

    def acquire(self, plan: ViewPlan) -> Lease:
        """Make and note what a plan needs, before its view is built.

        Raises PlaceholderError; nothing is left behind then.
        """
        end = time.monotonic() + _WAIT_S
        while True:
            lease = self._acquire(plan)
            lost = self._lost(lease)
            if lost is None:
                return lease
            self.release(lease)
            time.sleep(_PAUSE_S)
            if time.monotonic() > end or _is_gone(plan, lost.identity):
                raise PlaceholderError(f"{os.fsdecode(lost.name)} is being removed")

    def _acquire(self, plan: ViewPlan) -> Lease:
        lease = Lease()
        try:
            for missing in plan.missing:
                held = self._covering(missing) or self._cover(missing, lease)
                if held is not None:
                    self._by_path[missing.path] = held
                    self._add(lease, held)
                    lease.covered.append(missing)
            for mount in plan.mounts:
                if mount.kind in _COVERED and mount.identity is not None:
                    self._add(lease, self._guard(mount.path, mount.identity))
        except OSError as error:
            self.release(lease)
            raise PlaceholderError(
                f"a protected path cannot be covered: {os.strerror(error.errno or 0)}"
            ) from None
        except BaseException:
            self.release(lease)
            raise
        return lease

    def _lost(self, lease: Lease) -> _Held | None:
        """Return one of a lease that another owner may remove in spite of our note; None if all stay."""
        fresh = [one for one in lease.held if not one.proven]
        if not fresh or self._records is None:
            return None
        # Only now, since all are noted: who removes one notes that and then looks for notes like ours.
        going = self._records.removed_by_others(one.identity for one in fresh)
        for one in fresh:
            if one.identity[:2] in going or not is_at(one.parent_fd, one.name, one.identity):
                return one
            one.proven = True
        return None

    def release(self, lease: Lease) -> None:
        """Give back a lease: everything of it that no other view needs is removed if ours."""
        held, lease.held = lease.held, []
        ended = []
        for one in held:
            one.users -= 1
            if not one.users:
                del self._held[one.identity[:2]]
                for path in [path for path, known in self._by_path.items() if known is one]:
                    del self._by_path[path]
                ended.append(one)
        foreign = not all(one.ours for one in ended)
        self._let_go(ended)
        if foreign and self._records is not None:
            clean(
                self._records.folder, self._records.places
            )  # its owner may have died while it was in use here

    def retry(self) -> bool:
        """Try again to remove what other owners' views still used; return whether some is left."""
        pending, self._pending = self._pending, []
        self._let_go(pending)
        self._close_spent()
        return self.pending

    def close(self) -> None:
        """Give up ownership: what is still in use elsewhere is left to whoever cleans next."""
        self.retry()
        for one in (*self._pending, *self._held.values()):
            one.close()
        self._pending = []
        self._held = {}
        if self._records is not None:
            self._records.close()

    def _add(self, lease: Lease, held: _Held | None) -> None:
        if held is not None:
            held.users += 1
            lease.held.append(held)

    def _covering(self, missing: Missing) -> _Held | None:
        """Return the placeholder that covers a path for another view now and is what was noted.

        That its path still leads there is looked at by the view.
        """
        held = self._by_path.get(missing.path)
        if held is None or not held.users or missing.directory != stat.S_ISDIR(held.identity[2]):
            return None
        in_place = identity_of(os.fstat(held.parent_fd)) == missing.parent
        return held if in_place and is_at(held.parent_fd, held.name, held.identity) else None

    def _cover(self, missing: Missing, lease: Lease) -> _Held | None:
        """Return the placeholder for a lease's next path; None where nobody inside could make one."""
        if self._records is None:
            raise PlaceholderError("there is no private folder for the records of placeholders")
        parent_fd = _parent_of(missing, lease)
        held = None
        try:
            end = time.monotonic() + _WAIT_S
            while True:
                held = self._make_and_note(self._records, parent_fd, missing)
                if held is not None:
                    return held
                if time.monotonic() > end:
                    raise PlaceholderError(f"{os.fsdecode(missing.path)} is being removed")
                time.sleep(_PAUSE_S)
        except OSError as error:
            if nobody_may_create(error, parent_fd):
                return None
            raise
        finally:
            if held is None or held.parent_fd != parent_fd:
                os.close(parent_fd)

    def _make_and_note(self, records: RecordFolder, parent_fd: int, missing: Missing) -> _Held | None:
        """Make the object unless it is there, and use it; None when it is gone again or being removed."""
        note: Note | None = _noted(records, missing.path, missing.directory)
        held = None
        try:
            if not make(parent_fd, os.path.basename(missing.path), missing.directory):
                assert note is not None
                note.drop()
                note = None
            held = self._use(records, parent_fd, missing.path, missing.directory, note)
            return held
        finally:
            if note is not None and (held is None or held.note is not note):
                self._undo(records, note, missing)  # nobody uses it

    def _undo(self, records: RecordFolder, note: Note, missing: Missing) -> None:
        try:
            if not remove_recorded(note, missing.path, missing.directory, records.places, note.place):
                return  # the record stays, for whoever cleans when this owner has ended
        except OSError:
            return
        note.drop()

    def _use(
        self, records: RecordFolder, parent_fd: int, path: bytes, directory: bool, note: Note | None
    ) -> _Held | None:
        """Use the object of a path, made by us if there is a `note`; None when it is gone or being removed.

        Raises PlaceholderError when it is no empty object of the kind.
        """
        name = os.path.basename(path)
        fd = open_empty(parent_fd, name, directory)
        if fd is None:
            return None
        kept = False
        try:
            found = os.fstat(fd)
            identity = identity_of(found)
            known = self._held.get(identity[:2])
            if known is not None:
                return known
            if note is not None:
                used = note
                used.change(MADE, identity)
            else:
                refuse_others(path, found, parent_fd)
                used = self._take_back(identity) or _noted(records, path, directory, identity)
            kept = True
        finally:
            if not kept:
                os.close(fd)
        held = self._held[identity[:2]] = _Held(fd, parent_fd, name, identity, used)
        return held

    def _take_back(self, identity: Identity) -> Note | None:
        """Use one of ours again that still waits to be removed; return its record."""
        for one in self._pending:
            if one.identity == identity:
                self._pending.remove(one)
                one.close()
                return one.note
        return None

    def _guard(self, path: bytes, identity: Identity) -> _Held | None:
        """Use an existing protected object that may be a placeholder; None for any other."""
        try:
            found = os.lstat(path)
        except OSError:
            return None  # the view will find out
        if self._records is None or identity_of(found) != identity or not may_be_placeholder(found):
            return None
        try:
            parent_fd = open_parent(path, None)
        except OSError:
            return None
        held = None
        try:
            held = self._use_still(self._records, parent_fd, path, identity)
        except NotEmpty:
            return None
        finally:
            if held is None or held.parent_fd != parent_fd:
                os.close(parent_fd)
        return held

    def _use_still(self, records: RecordFolder, parent_fd: int, path: bytes, identity: Identity) -> _Held:
        """Use what has that path, also when somebody finds out just now whether he can remove it."""
        name = os.path.basename(path)
        end = time.monotonic() + _WAIT_S
        while True:
            held = self._use(records, parent_fd, path, stat.S_ISDIR(identity[2]), None)
            if held is not None:
                return held
            if time.monotonic() > end or not is_at(parent_fd, name, identity):
                raise PlaceholderError(f"{os.fsdecode(path)} is being removed")
            time.sleep(_PAUSE_S)

    def _let_go(self, ended: Sequence[_Held]) -> None:
        """Remove what is ours and no other owner uses; forget the rest, or keep it for later if ours."""
        ours = [one for one in ended if one.ours]
        for one in ended:
            if not one.ours:
                one.note.drop()
                one.close()
        if not ours:
            return
        assert self._records is not None
        for one in ours:
            _try_change(one.note, GOING)
        used = self._records.used_by_others(one.identity for one in ours)
        for one in ours:
            if one.identity[:2] in used:
                _try_change(one.note, MADE)
                self._pending.append(one)
                continue
            if remove_if_still(one.parent_fd, one.name, one.identity):
                self._records.spare(one.note)
            else:
                one.note.drop()
            self._spent.append(one)
        if len(self._spent) > _MOST_SPENT:
            self._close_spent()

    def _close_spent(self) -> None:
        spent, self._spent = self._spent, []
        if spent and self._records is not None:
            self._records.drop_spare()  # while the inodes they name are ours
        for one in spent:
            one.close()


def _parent_of(missing: Missing, lease: Lease) -> int:
    """Open the folder of a missing path: most often that of the one before, which is not walked to again."""
    if lease.covered and os.path.dirname(lease.covered[-1].path) == os.path.dirname(missing.path):
        parent_fd = os.dup(lease.held[-1].parent_fd)
        if identity_of(os.fstat(parent_fd)) == missing.parent:
            return parent_fd
        os.close(parent_fd)
    return open_parent(missing.path, missing.parent)


def _noted(records: RecordFolder, path: bytes, directory: bool, identity: Identity | None = None) -> Note:
    """Note what is about to be made or, with its identity, what is used."""
    try:
        return records.add(path, directory, NEW if identity is None else USED, identity)
    except OSError as error:
        # Not to be taken for an error of the place itself.
        raise PlaceholderError(f"a placeholder cannot be noted: {os.strerror(error.errno or 0)}") from None


def _is_gone(plan: ViewPlan, identity: Identity) -> bool:
    """Tell whether a plan found an object that is there no more; what it missed can be made anew."""
    path = next((mount.path for mount in plan.mounts if mount.identity == identity), None)
    try:
        return path is not None and identity_of(os.lstat(path)) != identity
    except OSError:
        return True


def _try_change(note: Note, state: bytes) -> None:
    try:
        note.change(state)
    except OSError:
        pass  # somebody has emptied the folder of records; what was made must go in any case
