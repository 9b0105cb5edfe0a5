"""Placeholders: what stands in the place of a protected path that does not exist, while a view hides it.

A view can only cover a name that exists, so an empty directory or file is made on the host before the view is
built and removed when the last view that needs it has ended.  Removing it earlier would drop the cover in
every view, so each user holds a shared lock on the placeholder itself, and only who gets the exclusive lock,
and finds it empty and still the object that was made, removes it.  That holds between any number of
processes, whether they know of each other or not.

Before a placeholder is made there is a record of it on disk; `clean` removes those whose owner has died.  An
empty protected object that is there already, perhaps the placeholder of another owner, is locked too and
never removed.  Paths are walked without following links and used by descriptor.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time

from execserver.sandbox.placeholder_files import (
    NotEmpty,
    PlaceholderError,
    identity_of,
    is_at,
    make,
    may_be_own_placeholder,
    may_be_placeholder,
    nobody_may_create,
    open_empty,
    open_parent,
    remove_if_still,
    try_lock,
)
from execserver.sandbox.placeholder_records import RecordFolder
from execserver.sandbox.plan import HIDDEN_DIRECTORY, HIDDEN_FILE, READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.plan import Identity, Missing, ViewPlan

_LOCK_WAIT_S = 0.25  # another owner that removes its placeholder holds the lock for microseconds
_LOCK_PAUSE_S = 0.001
_MOST_SPENT = 48  # two descriptors each
_COVERED = (READ, HIDDEN_DIRECTORY, HIDDEN_FILE)


class _Held:
    """One locked object: `fd` holds the lock, `parent_fd` its folder; `record` is None unless it is ours."""

    __slots__ = ("fd", "identity", "name", "parent_fd", "record", "users")

    def __init__(
        self, fd: int, parent_fd: int, name: bytes, identity: Identity, record: bytes | None
    ) -> None:
        self.fd = fd
        self.parent_fd = parent_fd
        self.name = name
        self.identity = identity
        self.record = record
        self.users = 0

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
    """All placeholders of one owner.  Without a folder for records every plan that needs one is refused."""

    def __init__(self, folder: bytes | None) -> None:
        self._records = None if folder is None else RecordFolder(folder)
        self._folder = folder
        self._held: dict[tuple[int, int], _Held] = {}
        self._by_path: dict[bytes, _Held] = {}  # those that cover a missing path now
        self._pending: list[_Held] = []
        self._spent: list[_Held] = []  # removed, but not closed: the last close of an inode may take long

    @property
    def pending(self) -> bool:
        """True while placeholders of ours wait for other owners' views, or to be closed; `retry` soon."""
        return bool(self._pending or self._spent)

    def acquire(self, plan: ViewPlan) -> Lease:
        """Make and lock what a plan needs, before its view is built.

        Raises PlaceholderError; nothing is left behind then.
        """
        lease = Lease()
        try:
            for missing in plan.missing:
                held = self._covering(missing) or self._cover(missing)
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

    def release(self, lease: Lease) -> None:
        """Give back a lease: everything of it that no other view needs is unlocked, and removed if ours."""
        foreign = False
        held, lease.held = lease.held, []
        for one in held:
            one.users -= 1
            if not one.users:
                del self._held[one.identity[:2]]
                for path in [path for path, known in self._by_path.items() if known is one]:
                    del self._by_path[path]
                foreign |= one.record is None
                self._let_go(one)
        if foreign and self._folder is not None:
            clean(self._folder)  # its owner may have died while it was in use here

    def retry(self) -> bool:
        """Try again to remove what other owners' views still used; return whether some is left."""
        pending, self._pending = self._pending, []
        for one in pending:
            self._let_go(one)
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
        """Return the placeholder that covers a path for another view now and is what was locked.

        That its path still leads there is looked at by the view.
        """
        held = self._by_path.get(missing.path)
        if held is None or not held.users or missing.directory != stat.S_ISDIR(held.identity[2]):
            return None
        in_place = identity_of(os.fstat(held.parent_fd)) == missing.parent
        return held if in_place and is_at(held.parent_fd, held.name, held.identity) else None

    def _cover(self, missing: Missing) -> _Held | None:
        """Return the locked placeholder for a missing path; None where nobody inside could make one."""
        if self._records is None:
            raise PlaceholderError("there is no private folder for the records of placeholders")
        parent_fd = open_parent(missing.path, missing.parent)
        held = None
        try:
            end = time.monotonic() + _LOCK_WAIT_S
            while True:
                held = self._make_and_lock(self._records, parent_fd, missing)
                if held is not None:
                    return held
                if time.monotonic() > end:
                    raise PlaceholderError(f"{os.fsdecode(missing.path)} is locked by another program")
                time.sleep(_LOCK_PAUSE_S)
        except OSError as error:
            if nobody_may_create(error, parent_fd):
                return None
            raise
        finally:
            if held is None or held.parent_fd != parent_fd:
                os.close(parent_fd)

    def _make_and_lock(self, records: RecordFolder, parent_fd: int, missing: Missing) -> _Held | None:
        """Make the object unless it is there, and lock it; None when it is gone again or locked."""
        name = os.path.basename(missing.path)
        record: bytes | None = records.add(missing.path, missing.directory)
        held = None
        try:
            if not make(parent_fd, name, missing.directory):
                records.drop(record or b"")
                record = None
            held = self._lock(parent_fd, name, record, missing.directory)
            return held
        finally:
            if record is not None and held is None:  # nobody uses it; who locked it may be removing it
                self._undo(records, record, missing)

    def _undo(self, records: RecordFolder, record: bytes, missing: Missing) -> None:
        try:
            if not _remove_recorded(missing.path, None, missing.directory):
                return  # the record stays, for whoever cleans when this owner has ended
        except OSError:
            return
        records.drop(record)

    def _lock(self, parent_fd: int, name: bytes, record: bytes | None, directory: bool) -> _Held | None:
        """Lock the object of that name; None when it is gone again or somebody removes it just now.

        Raises PlaceholderError when it is no empty object of the kind.
        """
        fd = open_empty(parent_fd, name, directory)
        if fd is None:
            return None
        identity = identity_of(os.fstat(fd))
        known = self._held.get(identity[:2])
        if known is not None:
            os.close(fd)
            return known
        if not try_lock(fd, fcntl.LOCK_SH) or not is_at(parent_fd, name, identity):
            os.close(fd)
            return None
        if record is None:
            record = self._take_back(identity)
        elif self._records is not None:
            self._records.identify(record, identity)
        held = _Held(fd, parent_fd, name, identity, record)
        self._held[identity[:2]] = held
        return held

    def _take_back(self, identity: Identity) -> bytes | None:
        """Use one of ours again that still waits to be removed; return its record."""
        for one in self._pending:
            if one.identity == identity:
                self._pending.remove(one)
                one.close()
                return one.record
        return None

    def _guard(self, path: bytes, identity: Identity) -> _Held | None:
        """Lock an existing protected object that may be a placeholder; None for any other."""
        try:
            found = os.lstat(path)
        except OSError:
            return None  # the view will find out
        if identity_of(found) != identity or not may_be_placeholder(found):
            return None
        try:
            parent_fd = open_parent(path, None)
        except OSError:
            return None
        held = None
        try:
            held = self._lock_still(parent_fd, path, identity)
        except NotEmpty:
            return None
        finally:
            if held is None or held.parent_fd != parent_fd:
                os.close(parent_fd)
        return held

    def _lock_still(self, parent_fd: int, path: bytes, identity: Identity) -> _Held:
        """Lock what has that path, also when somebody tries just now whether he can remove it."""
        name = os.path.basename(path)
        end = time.monotonic() + _LOCK_WAIT_S
        while True:
            held = self._lock(parent_fd, name, None, stat.S_ISDIR(identity[2]))
            if held is not None:
                return held
            if time.monotonic() > end or not is_at(parent_fd, name, identity):
                raise PlaceholderError(f"{os.fsdecode(path)} is being removed")
            time.sleep(_LOCK_PAUSE_S)

    def _let_go(self, one: _Held) -> None:
        if one.record is None:
            one.close()
            return
        assert self._records is not None
        if not try_lock(one.fd, fcntl.LOCK_EX):
            # The failed upgrade has lost the shared lock as well: nothing here needs it any more.
            self._pending.append(one)
            return
        remove_if_still(one.parent_fd, one.name, one.identity)
        fcntl.flock(one.fd, fcntl.LOCK_UN)
        self._records.drop(one.record)
        self._spent.append(one)
        if len(self._spent) > _MOST_SPENT:
            self._close_spent()

    def _close_spent(self) -> None:
        spent, self._spent = self._spent, []
        for one in spent:
            one.close()


def clean(folder: bytes) -> None:
    """Remove the placeholders of owners that have died, as far as no view uses them; never raises OSError."""
    for owner in RecordFolder.dead_owners(folder):
        for record in owner.records():
            try:
                removed = _remove_recorded(record.path, record.identity, record.directory)
            except OSError:
                removed = False
            if removed:
                owner.drop(record)
        owner.close()


def _remove_recorded(path: bytes, identity: Identity | None, directory: bool) -> bool:
    """Remove what a dead owner made; return whether its record has served."""
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
            # Without an identity its owner was killed between making it and noting which object it is.
            if not may_be_own_placeholder(found) or identity not in (None, identity_of(found)):
                return True
            if not try_lock(fd, fcntl.LOCK_EX):
                return False
            remove_if_still(parent_fd, name, identity_of(found))
            return True
        finally:
            os.close(fd)
    except NotEmpty:
        return True
    finally:
        os.close(parent_fd)
