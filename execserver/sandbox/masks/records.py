"""Mask records: who uses, makes or removes which mask target, and what is left after an owner's death.

`<folder>/<owner>/` belongs to one owner (`owners.py`).  Each file in it records one object, which is about to
be made (NEW), was made (MADE), was there and is used (USED), or is being removed (GOING).  The file's name
says which, with device and inode, so others need to list folders only; its content is the kind and the path.

Two owners never drop each other's mask.  A user first writes its record and then looks for a remover; a
remover first writes its record and then looks for users.  So one of the two always sees the other.
Locks decide nothing: a command inside can hold a lock on any file that it can open.
"""

from __future__ import annotations

import fcntl
import os
import stat

from execserver.sandbox.masks import owners
from execserver.sandbox.masks.files import (
    MaskTargetError,
    identity_of,
    may_be_mask_target,
    may_write_below,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from execserver.sandbox.plan import Identity

NEW, MADE, USED, GOING = b"new", b"made", b"used", b"going"
_NO_IDENTITY = b"%020d %020d " % (0, 0)  # older versions have device and inode here, not in the name
_IDENTITY_BYTES = 42
_MOST_BYTES = 64 * 1024
_NEW_LOCK = b"new-lock"
_IN_RUNTIME_DIR = b"execserver"
_EMPTY_LINKS = 2  # of a folder without folders, where these are counted; Btrfs does not, and says 1


class MaskRecord:
    """The record of one object, in its owner's folder `place`; `path` is where the record is."""

    __slots__ = ("about", "identity", "number", "path", "place", "state")

    def __init__(self, place: bytes, number: bytes, state: bytes, identity: Identity | None) -> None:
        self.place = place
        self.number = number
        self.state = state
        self.identity = identity
        self.path = self._path(state, identity)
        self.about: tuple[bytes, bool] | None = None  # the object's path, and whether it is a directory

    def change(self, state: bytes, identity: Identity | None = None) -> None:
        """Record what became of the object.  Raises OSError."""
        self._become(state, identity or self.identity)

    def renew(self) -> None:
        """Record that another object is about to be made at the same path.  Raises OSError."""
        self._become(NEW, None)

    def _become(self, state: bytes, identity: Identity | None) -> None:
        path = self._path(state, identity)
        os.rename(self.path, path)  # atomic: others see the old state or the new one, never none
        self.state, self.identity, self.path = state, identity, path

    def _path(self, state: bytes, identity: Identity | None) -> bytes:
        if state == NEW or identity is None:
            return self.place + b"/" + self.number
        return b"%b/%b.%d.%d.%b" % (self.place, self.number, *identity[:2], state)

    def drop(self) -> None:
        """Forget the object: it is not there any more, or not used."""
        _unlink(self.path)


class RecordFolder:
    """The records of this process below a private folder; nothing is made there before the first record.

    `others` are further folders where owners of this user may keep theirs.
    """

    def __init__(self, folder: bytes, others: Sequence[bytes] = ()) -> None:
        self.folder = folder
        self.places = tuple(dict.fromkeys((folder, *others)))
        self._own: bytes | None = None  # our folder, from the first record on
        self._counting = -1  # the device of a file system that counts folders as links
        self._spare: dict[tuple[bytes, bool], MaskRecord] = {}  # of removed objects, by path and kind
        self._lock_fd = -1
        self._count = 0

    def add(
        self, path: bytes, directory: bool, state: bytes = NEW, identity: Identity | None = None
    ) -> MaskRecord:
        """Record an object that is about to be made, or is used.  Raises OSError."""
        own = self._own or self._begin()
        spare = self._spare.pop((path, directory), None) if state == NEW else None
        if spare is not None:
            spare.renew()
            return spare
        self._count += 1
        record = MaskRecord(own, b"%d" % self._count, state, identity)
        record.about = path, directory
        fd = os.open(record.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, _NO_IDENTITY + (b"d " if directory else b"f ") + path)
        finally:
            os.close(fd)
        return record

    def spare(self, record: MaskRecord) -> None:
        """Keep the record of a removed object for the next object at its path.

        It still names the old inode, so the caller keeps that from being reused until `drop_spare`.
        """
        # Renaming a record takes 10 us; removing one and writing another takes 35.
        if record.about is None or self._spare.setdefault(record.about, record) is not record:
            record.drop()  # one for each path is enough

    def drop_spare(self) -> None:
        """Drop the records kept for later."""
        for record in self._spare.values():
            record.drop()
        self._spare.clear()

    def used_by_others(self, identities: Iterable[Identity]) -> set[tuple[int, int]]:
        """Return which objects, by device and inode, other owners need to stay."""
        return self._recorded_by_others(identities, (MADE, USED))

    def removed_by_others(self, identities: Iterable[Identity]) -> set[tuple[int, int]]:
        """Return which objects, by device and inode, other owners are removing right now."""
        return self._recorded_by_others(identities, (GOING,))

    def _recorded_by_others(
        self, identities: Iterable[Identity], states: Sequence[bytes]
    ) -> set[tuple[int, int]]:
        # One look for all objects: it lists the folder of every other owner.
        wanted = {end: key for identity in identities for end, key in _ends(identity, states).items()}
        if not wanted:
            return set()
        return {
            key for _, key in _living_records(self.places, wanted, self._own or b"", None, self._counting)
        }

    def close(self) -> None:
        """Give up ownership; remove the folder if it holds no record."""
        self.drop_spare()
        if self._own is not None:
            _end(self._own)
            os.close(self._lock_fd)
            self._own = None

    def _begin(self) -> bytes:
        own = self.folder + b"/" + owners.new_name()
        os.mkdir(own, 0o700)
        new = own + b"/" + _NEW_LOCK
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Other pid namespaces take an owner for dead if nobody holds its lock.  So the lock file gets
            # its name only when it is locked.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(new, own + b"/" + owners.LOCK)
        except OSError:
            os.close(fd)
            raise
        self._own, self._lock_fd = own, fd
        # We have just made a folder here: if the link count says so, it can be believed from now on.
        found = os.lstat(self.folder)
        self._counting = found.st_dev if found.st_nlink > _EMPTY_LINKS else -1
        return own


class DeadOwner:
    """The records of an owner that has died, taken over until `close`."""

    def __init__(self, path: bytes) -> None:
        self.path = path

    def records(self) -> Iterator[tuple[MaskRecord, bytes, bool]]:
        """Yield each record of what may be left, its path and whether it is a directory; drop the others."""
        for name in os.listdir(self.path):
            if name in (owners.LOCK, _NEW_LOCK):
                continue
            record = _read(self.path, name)
            if record is None:  # not ours to remove (USED), or nothing that an owner wrote
                _unlink(self.path + b"/" + name)
            else:
                yield record

    def close(self) -> None:
        """Leave the rest to the next cleanup; remove the folder if it holds no record any more."""
        _end(self.path)


def dead_owners(folder: bytes) -> Iterator[DeadOwner]:
    """Yield the owners that have ended without `close`, each taken over; the caller closes them."""
    for name in _names_in(folder):
        path = folder + b"/" + name
        if owners.lives(path):
            continue
        try:
            # The rename makes us its living owner, and only one of several cleaners succeeds.
            taken = folder + b"/" + owners.new_name()
            os.rename(path, taken)
        except OSError:
            continue  # somebody else has taken it over
        yield DeadOwner(taken)


def is_recorded(
    places: Sequence[bytes], identity: Identity, states: Sequence[bytes], besides: bytes = b""
) -> bool:
    """Tell whether a living owner, except that of `besides`, has a record of an object in one of `states`."""
    return find_record(places, identity, states, besides) is not None


def find_record(
    places: Sequence[bytes],
    identity: Identity,
    states: Sequence[bytes],
    besides: bytes = b"",
    user: int | None = None,
) -> bytes | None:
    """Return the path of the record that `is_recorded` finds; None without one.

    The owner is one of this user's, or of another `user`, whose records only root can read.
    """
    wanted = _ends(identity, states)
    return next((path for path, _ in _living_records(places, wanted, besides, user)), None)


def _ends(identity: Identity, states: Sequence[bytes]) -> dict[bytes, tuple[int, int]]:
    """Return how the names of records of an object in some states end, each with the object's key."""
    return {b"%d.%d.%b" % (*identity[:2], state): identity[:2] for state in states}


def _living_records(
    places: Sequence[bytes],
    wanted: dict[bytes, tuple[int, int]],
    besides: bytes,
    user: int | None = None,
    counting: int = -1,
) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Yield path and object of each record of a living owner whose name has a wanted end.

    `counting` is the device of a file system whose link counts are believed.
    """
    for place in places:
        found = _private(place, user)
        if found is None:
            continue  # whoever else can write there could forge records
        # Mostly there is no other owner; then the link count alone says that nothing need be listed.
        links = _EMPTY_LINKS + besides.startswith(place + b"/")  # our own folder counts, too
        if found.st_dev == counting and found.st_nlink == links:
            continue
        for name in _names_in(place):
            path = place + b"/" + name
            if path == besides:
                continue
            for record in _names_in(path):
                # Names are only compared, never parsed: one that no owner wrote matches nothing.
                recorded = wanted.get(record.partition(b".")[2])
                if recorded is not None and owners.lives(path):
                    yield path + b"/" + record, recorded


def is_made_by(user: int, identity: Identity) -> bool:
    """Tell whether an object is the mask target of a living owner of that user, as far as can be known."""
    return find_record(record_places(None, user=user), identity, (MADE, GOING), user=user) is not None


def refuse_others(path: bytes, found: os.stat_result, parent_fd: int) -> None:
    """Raise MaskTargetError for what another user's owner may have made, and removes without asking us."""
    if found.st_uid == os.geteuid() or not may_be_mask_target(found):
        return
    # Root can read all records.  Other users cannot, and whatever else an owner could show, a command of its
    # user could show, too.  They need no mask where they may not write: then nobody inside can, either.
    theirs = is_made_by(found.st_uid, identity_of(found)) if os.geteuid() == 0 else may_write_below(parent_fd)
    if theirs:
        raise MaskTargetError(
            f"{os.fsdecode(path)} is empty and belongs to user {found.st_uid}: if a command of theirs runs "
            "here, start this one when it has ended; else remove it"
        )


def private_folder(path: bytes, make: bool = True) -> bytes | None:
    """Make a folder that only this user can enter, or check an existing one; None if it is not private."""
    try:
        if make:
            os.mkdir(path, 0o700)
    except FileExistsError:
        pass  # perhaps made by somebody else: it is checked below
    except OSError:
        return None
    return path if _is_private(path) else None


def state_folder(
    runtime_dir: bytes | None, temp_dir: bytes = b"/tmp", make: bool = True, run_dir: bytes = b"/run"
) -> bytes | None:
    """Return this user's private folder for records, made if `make` is true; None when there is none.

    It lies in `runtime_dir` (XDG_RUNTIME_DIR) or its usual place, if that belongs to this user; for root in
    `run_dir`; else in `temp_dir`, where a folder that somebody else made under our name is refused.
    """
    found = (
        private_folder(path, make)
        for path in record_places(runtime_dir, temp_dir, run_dir)
        if os.path.basename(path) != _IN_RUNTIME_DIR or _is_own_folder(os.path.dirname(path))
    )
    return next((folder for folder in found if folder is not None), None)


def record_places(
    runtime_dir: bytes | None,
    temp_dir: bytes = b"/tmp",
    run_dir: bytes = b"/run",
    user: int | None = None,
) -> tuple[bytes, ...]:
    """Return every folder where a user's records may be, the best first.  Nothing is looked up."""
    user = os.geteuid() if user is None else user
    at = [runtime_dir] if runtime_dir and os.path.isabs(runtime_dir) else []
    own = b"/execserver-records-%d" % user
    places = [place + b"/" + _IN_RUNTIME_DIR for place in (*at, run_dir + b"/user/%d" % user)]
    return tuple(dict.fromkeys([*places, *([run_dir + own] if user == 0 else []), temp_dir + own]))


def _is_own_folder(path: bytes) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _is_private(path: bytes) -> bool:
    return _private(path, None) is not None


def _private(path: bytes, user: int | None) -> os.stat_result | None:
    """Return the status of a folder that only this user (or `user`) can enter; None for any other."""
    try:
        found = os.lstat(path)  # not stat: somebody else could replace a symlink later
    except OSError:
        return None
    owner = os.geteuid() if user is None else user
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == owner and not found.st_mode & 0o077
    return found if private else None


def _read(folder: bytes, name: bytes) -> tuple[MaskRecord, bytes, bool] | None:
    """Return the record of what an owner made or was about to make; None for any other."""
    try:
        # O_NONBLOCK: a FIFO under this name would block us for ever.
        fd = os.open(folder + b"/" + name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = os.read(fd, _MOST_BYTES)
    finally:
        os.close(fd)
    number, *said = name.split(b".")  # NUMBER, or NUMBER.DEVICE.INODE.STATE
    old, kind, path = content[:_IDENTITY_BYTES].split(), content[_IDENTITY_BYTES:][:2], content[44:]
    directory = kind == b"d "
    if len(old) != 2 or kind not in (b"d ", b"f ") or not path.startswith(b"/") or said[2:] == [USED]:
        return None
    try:
        device, inode = (int(value) for value in (said[:2] if len(said) == 3 else old))
    except ValueError:
        return None  # nothing that an owner wrote
    identity = (device, inode, stat.S_IFDIR if directory else stat.S_IFREG) if inode else None
    return MaskRecord(folder, number, said[2] if len(said) == 3 else NEW, identity), path, directory


def _end(folder: bytes) -> None:
    """Remove an owner's folder if it holds no record; else rename it, for the next cleanup."""
    try:
        if set(os.listdir(folder)) <= {owners.LOCK, _NEW_LOCK}:
            _unlink(folder + b"/" + _NEW_LOCK)  # its owner was killed before the rename in `_begin`
            _unlink(folder + b"/" + owners.LOCK)
            os.rmdir(folder)
        else:
            os.rename(folder, os.path.dirname(folder) + b"/" + owners.left_name())
    except OSError:
        pass


def _names_in(folder: bytes) -> list[bytes]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _unlink(path: bytes) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
