"""Mask targets: empty objects on the host in the place of protected paths that do not exist.

A mount can mask only a path that exists.  So an empty directory or file is made on the host before the
sandbox root is built, and removed when the last one that needs it has ended.  If it went earlier, the kernel
would drop the mask in every sandbox root.  So each mask owner records what it uses.  It removes only what it
made, what is still empty, and what no other living owner of this user has a record of.

A record is written before the object is made; `clean` removes what dead owners left.  An empty protected
object that exists already may be another owner's mask target: it is recorded, too, and never removed.
Paths are walked without following symlinks, and used by descriptor.
"""

from __future__ import annotations

import os
import stat
import time

from execserver.sandbox.masks.files import (
    MaskTargetError,
    NotEmpty,
    identity_of,
    is_at,
    make,
    may_be_mask_target,
    nobody_may_create,
    open_empty,
    open_parent,
    remove_if_still,
)
from execserver.sandbox.masks.records import GOING, MADE, NEW, USED, MaskRecord, RecordFolder, refuse_others
from execserver.sandbox.masks.stale import clean, remove_recorded
from execserver.sandbox.plan import HIDDEN_DIRECTORY, HIDDEN_FILE, READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from execserver.sandbox.plan import Identity, Missing, SandboxPlan

_WAIT_S = 0.25  # another owner takes microseconds to remove its mask target
_PAUSE_S = 0.001
_MOST_SPENT = 48  # two descriptors each
_COVERED = (READ, HIDDEN_DIRECTORY, HIDDEN_FILE)


class _Held:
    """One object in use: `fd` keeps its inode number from being reused, `parent_fd` is its directory."""

    __slots__ = ("fd", "identity", "name", "parent_fd", "proven", "record", "users")

    def __init__(self, fd: int, parent_fd: int, name: bytes, identity: Identity, record: MaskRecord) -> None:
        self.fd = fd
        self.parent_fd = parent_fd
        self.name = name
        self.identity = identity
        self.record = record
        self.proven = False  # True: no other owner had begun to remove it before it was recorded
        self.users = 0

    @property
    def ours(self) -> bool:
        """True for what this owner made, and therefore removes."""
        return self.record.state != USED

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.parent_fd)


class Lease:
    """The mask lease of one sandbox root; given back with `MaskTargets.release`, once.

    `covered` are the missing paths that have a mask target now.  The others nobody inside can create anyway.
    """

    __slots__ = ("covered", "held")

    def __init__(self) -> None:
        self.covered: list[Missing] = []
        self.held: list[_Held] = []


class MaskTargets:
    """All mask targets of one owner; `places` are all folders where owners of this user keep their records.

    Without a `folder` for our own records, plans that need a mask target are refused.
    """

    def __init__(self, folder: bytes | None, places: Sequence[bytes] = ()) -> None:
        self._records = None if folder is None else RecordFolder(folder, places)
        self._held: dict[tuple[int, int], _Held] = {}
        self._by_path: dict[bytes, _Held] = {}  # those that stand for a missing path now
        self._pending: list[_Held] = []  # ours, but other owners still use them
        self._spent: list[_Held] = []  # removed, but not closed: the last close of an inode may take long

    @property
    def pending(self) -> bool:
        """True while mask targets of ours wait for other owners, or to be closed; `retry` soon."""
        return bool(self._pending or self._spent)

    def acquire(self, plan: SandboxPlan) -> Lease:
        """Make and record what a plan needs, before its sandbox root is built.

        Raises MaskTargetError; nothing is left behind then.
        """
        end = time.monotonic() + _WAIT_S
        while True:
            lease = self._acquire(plan)
            lost = self._lost(lease)
            if lost is None:
                return lease
            # Another owner was already removing it.  What was missing can be made anew a moment later.
            self.release(lease)
            time.sleep(_PAUSE_S)
            if time.monotonic() > end or _is_gone(plan, lost.identity):
                raise MaskTargetError(f"{os.fsdecode(lost.name)} is being removed")

    def _acquire(self, plan: SandboxPlan) -> Lease:
        lease = Lease()
        try:
            for missing in plan.missing:
                held = self._covering(missing) or self._cover(missing, lease)
                if held is not None:
                    self._by_path[missing.path] = held
                    self._add(lease, held)
                    lease.covered.append(missing)
            # A masked path that exists may be another owner's mask target, and must stay for us, too.
            for mount in plan.mounts:
                if mount.kind in _COVERED and mount.identity is not None:
                    self._add(lease, self._guard(mount.path, mount.identity))
        except OSError as error:
            self.release(lease)
            raise MaskTargetError(
                f"a protected path cannot be covered: {os.strerror(error.errno or 0)}"
            ) from None
        except BaseException:
            self.release(lease)
            raise
        return lease

    def _lost(self, lease: Lease) -> _Held | None:
        """Return one of a lease that another owner may remove in spite of our record; None if all stay."""
        fresh = [one for one in lease.held if not one.proven]
        if not fresh or self._records is None:
            return None
        # First all our records, then this look.  A remover records GOING first and then looks for records
        # like ours, so one of the two always sees the other.
        going = self._records.removed_by_others(one.identity for one in fresh)
        for one in fresh:
            # Whoever had removed it before our record was there left neither record nor object.
            if one.identity[:2] in going or not is_at(one.parent_fd, one.name, one.identity):
                return one
            one.proven = True
        return None

    def release(self, lease: Lease) -> None:
        """Give back a lease.  What we made of it is removed unless another sandbox root needs it."""
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
        # The owner of what was not ours may have died while our record kept others from removing it.
        if foreign and self._records is not None:
            clean(self._records.folder, self._records.places)

    def retry(self) -> bool:
        """Try again to remove what other owners still used; return whether some is left."""
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
        """Return the mask target that we use for a path already, if it is still in place."""
        # Three calls; to make, record and look once more takes 25.  Whether the path still leads to it is
        # checked when the sandbox root is built.
        held = self._by_path.get(missing.path)
        if held is None or not held.users or missing.directory != stat.S_ISDIR(held.identity[2]):
            return None
        unnamespaced = identity_of(os.fstat(held.parent_fd)) == missing.parent
        return held if unnamespaced and is_at(held.parent_fd, held.name, held.identity) else None

    def _cover(self, missing: Missing, lease: Lease) -> _Held | None:
        """Return the mask target for a lease's next path; None where nobody inside could make one."""
        if self._records is None:  # after a kill nobody would know what to remove
            raise MaskTargetError("there is no private folder for the records of mask targets")
        parent_fd = _parent_of(missing, lease)
        held = None
        try:
            end = time.monotonic() + _WAIT_S
            while True:
                held = self._make_and_record(self._records, parent_fd, missing)
                if held is not None:
                    return held
                if time.monotonic() > end:
                    raise MaskTargetError(f"{os.fsdecode(missing.path)} is being removed")
                time.sleep(_PAUSE_S)
        except OSError as error:
            if nobody_may_create(error, parent_fd):
                return None
            raise
        finally:
            if held is None or held.parent_fd != parent_fd:
                os.close(parent_fd)

    def _make_and_record(self, records: RecordFolder, parent_fd: int, missing: Missing) -> _Held | None:
        """Make the object unless it exists, and use it; None when it is gone again or being removed."""
        # The record comes first: if we are killed between the two, somebody still knows what to remove.
        record: MaskRecord | None = _recorded(records, missing.path, missing.directory)
        held = None
        try:
            if not make(parent_fd, os.path.basename(missing.path), missing.directory):
                # It exists, so it is not ours to remove; `_use` records that it is used.
                assert record is not None
                record.drop()
                record = None
            held = self._use(records, parent_fd, missing.path, missing.directory, record)
            return held
        finally:
            if record is not None and (held is None or held.record is not record):
                self._undo(records, record, missing)  # made, but not used

    def _undo(self, records: RecordFolder, record: MaskRecord, missing: Missing) -> None:
        try:
            if not remove_recorded(record, missing.path, missing.directory, records.places, record.place):
                return  # the record stays for the stale mask cleanup after this owner's end
        except OSError:
            return
        record.drop()

    def _use(
        self, records: RecordFolder, parent_fd: int, path: bytes, directory: bool, record: MaskRecord | None
    ) -> _Held | None:
        """Use the object at a path, made by us if there is a `record`; None when it is gone or being removed.

        Raises MaskTargetError when it is no empty object of the kind.
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
            if record is not None:
                used = record
                used.change(MADE, identity)
            else:
                refuse_others(path, found, parent_fd)  # another user's owners would not see our record
                used = self._take_back(identity) or _recorded(records, path, directory, identity)
            kept = True
        finally:
            if not kept:
                os.close(fd)
        held = self._held[identity[:2]] = _Held(fd, parent_fd, name, identity, used)
        return held

    def _take_back(self, identity: Identity) -> MaskRecord | None:
        """Use one of ours again that still waits for its removal; return its record."""
        for one in self._pending:
            if one.identity == identity:
                self._pending.remove(one)
                one.close()
                return one.record
        return None

    def _guard(self, path: bytes, identity: Identity) -> _Held | None:
        """Use an existing protected object that may be a mask target; None for any other."""
        try:
            found = os.lstat(path)
        except OSError:
            return None  # building the sandbox root will tell
        # What cannot be a mask target is removed by no owner, so it needs no record.
        if self._records is None or identity_of(found) != identity or not may_be_mask_target(found):
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
        """Use the object at a path.  Waits while another owner checks whether it can remove it."""
        name = os.path.basename(path)
        end = time.monotonic() + _WAIT_S
        while True:
            held = self._use(records, parent_fd, path, stat.S_ISDIR(identity[2]), None)
            if held is not None:
                return held
            if time.monotonic() > end or not is_at(parent_fd, name, identity):  # or it was removed
                raise MaskTargetError(f"{os.fsdecode(path)} is being removed")
            time.sleep(_PAUSE_S)

    def _let_go(self, ended: Sequence[_Held]) -> None:
        """Remove what is ours and no other owner uses; keep the rest of ours for later, forget all else."""
        ours = [one for one in ended if one.ours]
        for one in ended:
            if not one.ours:
                one.record.drop()
                one.close()
        if not ours:
            return
        assert self._records is not None
        # First say for all of them that they are going, then look once for users: see `_lost`.  One look for
        # all, since it lists the folder of every owner.
        for one in ours:
            _try_change(one.record, GOING)
        used = self._records.used_by_others(one.identity for one in ours)
        for one in ours:
            if one.identity[:2] in used:
                # Another sandbox root would lose its mask with it.
                _try_change(one.record, MADE)
                self._pending.append(one)
                continue
            if remove_if_still(one.parent_fd, one.name, one.identity):
                self._records.spare(one.record)  # true until `_close_spent`: the inode is still ours
            else:
                one.record.drop()
            self._spent.append(one)
        if len(self._spent) > _MOST_SPENT:
            self._close_spent()

    def _close_spent(self) -> None:
        spent, self._spent = self._spent, []
        if spent and self._records is not None:
            self._records.drop_spare()  # first: after the close anything may get an inode that they name
        for one in spent:
            one.close()


def _parent_of(missing: Missing, lease: Lease) -> int:
    """Open the directory of a missing path; that of the lease's previous path is not walked to again."""
    if lease.covered and os.path.dirname(lease.covered[-1].path) == os.path.dirname(missing.path):
        parent_fd = os.dup(lease.held[-1].parent_fd)
        if identity_of(os.fstat(parent_fd)) == missing.parent:  # else it was replaced in between
            return parent_fd
        os.close(parent_fd)
    return open_parent(missing.path, missing.parent)


def _recorded(
    records: RecordFolder, path: bytes, directory: bool, identity: Identity | None = None
) -> MaskRecord:
    """Record what is about to be made or, with its identity, what is used."""
    try:
        return records.add(path, directory, NEW if identity is None else USED, identity)
    except OSError as error:
        # Not an OSError: the caller would take it for an error of the path itself.
        raise MaskTargetError(f"a mask target cannot be noted: {os.strerror(error.errno or 0)}") from None


def _is_gone(plan: SandboxPlan, identity: Identity) -> bool:
    """Tell whether a plan names an object that is gone; what a plan found missing can be made anew."""
    path = next((mount.path for mount in plan.mounts if mount.identity == identity), None)
    try:
        return path is not None and identity_of(os.lstat(path)) != identity
    except OSError:
        return True


def _try_change(record: MaskRecord, state: bytes) -> None:
    try:
        record.change(state)
    except OSError:
        pass  # somebody has emptied the folder of records; what was made must be removed in any case
