"""What an owner of placeholders writes down, so that others know what it uses and clean up after its death.

`<folder>/<owner>/` belongs to one owner (`owners.py`); each file there is a note about one object: what is
about to be made, was made, is used though it was there, or is just being removed.  The name of the note says
which, with device and inode, so others read folders only; its content is the kind and the path.

Two owners never drop each other's cover: whoever uses an object notes it first and then looks for somebody
who removes it; whoever removes one notes that first and then looks for users.  So one of two sees the other.
No lock is asked: a command inside can hold any lock on what it can open, and decides nothing by it.
"""

from __future__ import annotations

import fcntl
import os
import stat

from execserver.sandbox import owners
from execserver.sandbox.placeholder_files import (
    PlaceholderError,
    identity_of,
    may_be_placeholder,
    may_write_below,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from execserver.sandbox.plan import Identity

NEW, MADE, USED, GOING = b"new", b"made", b"used", b"going"
_NO_IDENTITY = b"%020d %020d " % (0, 0)  # where versions before this one had it
_IDENTITY_BYTES = 42
_MOST_BYTES = 64 * 1024
_NEW_LOCK = b"new-lock"
_IN_RUNTIME_DIR = b"execserver"
_EMPTY_LINKS = 2  # of a folder without folders, where these are counted: not in Btrfs, which says 1


class Note:
    """A note about one object, in the folder `place` of who owns it; `path` is where the note is."""

    __slots__ = ("about", "identity", "number", "path", "place", "state")

    def __init__(self, place: bytes, number: bytes, state: bytes, identity: Identity | None) -> None:
        self.place = place
        self.number = number
        self.state = state
        self.identity = identity
        self.path = self._path(state, identity)
        self.about: tuple[bytes, bool] | None = None  # the path in it, and whether it is a directory's

    def change(self, state: bytes, identity: Identity | None = None) -> None:
        """Note what became of the object.  Raises OSError."""
        self._become(state, identity or self.identity)

    def renew(self) -> None:
        """Say of another object, with the same path, that it is about to be made.  Raises OSError."""
        self._become(NEW, None)

    def _become(self, state: bytes, identity: Identity | None) -> None:
        path = self._path(state, identity)
        os.rename(self.path, path)
        self.state, self.identity, self.path = state, identity, path

    def _path(self, state: bytes, identity: Identity | None) -> bytes:
        if state == NEW or identity is None:
            return self.place + b"/" + self.number
        return b"%b/%b.%d.%d.%b" % (self.place, self.number, *identity[:2], state)

    def drop(self) -> None:
        """Forget the object: it is not there any more, or not used."""
        _unlink(self.path)


class RecordFolder:
    """The records of this process below a private folder; nothing is made there before the first one.

    `others` are the further places where owners of this user may keep theirs.
    """

    def __init__(self, folder: bytes, others: Sequence[bytes] = ()) -> None:
        self.folder = folder
        self.places = tuple(dict.fromkeys((folder, *others)))
        self._own: bytes | None = None
        self._counting = -1  # a file system whose folders have a link for each folder in them
        self._spare: dict[tuple[bytes, bool], Note] = {}
        self._lock_fd = -1
        self._count = 0

    def add(self, path: bytes, directory: bool, state: bytes = NEW, identity: Identity | None = None) -> Note:
        """Note an object that is about to be made, or is used.  Raises OSError."""
        own = self._own or self._begin()
        spare = self._spare.pop((path, directory), None) if state == NEW else None
        if spare is not None:
            spare.renew()
            return spare
        self._count += 1
        note = Note(own, b"%d" % self._count, state, identity)
        note.about = path, directory
        fd = os.open(note.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, _NO_IDENTITY + (b"d " if directory else b"f ") + path)
        finally:
            os.close(fd)
        return note

    def spare(self, note: Note) -> None:
        """Keep the note of an object that was removed for the next one of its path.

        It goes on saying what it said, so the caller keeps the inode from being given out again until
        `drop_spare`.  To rename a note takes 10 us, to make and remove one 35.
        """
        if note.about is None or self._spare.setdefault(note.about, note) is not note:
            note.drop()

    def drop_spare(self) -> None:
        """Drop what is kept for later."""
        for note in self._spare.values():
            note.drop()
        self._spare.clear()

    def used_by_others(self, identities: Iterable[Identity]) -> set[tuple[int, int]]:
        """Return which objects, by device and inode, other owners need to stay."""
        return self._noted_by_others(identities, (MADE, USED))

    def removed_by_others(self, identities: Iterable[Identity]) -> set[tuple[int, int]]:
        """Return which objects, by device and inode, other owners are just removing."""
        return self._noted_by_others(identities, (GOING,))

    def _noted_by_others(
        self, identities: Iterable[Identity], states: Sequence[bytes]
    ) -> set[tuple[int, int]]:
        # All objects in one look: it lists the folder of each other owner.
        wanted = {end: key for identity in identities for end, key in _ends(identity, states).items()}
        if not wanted:
            return set()
        return {key for _, key in _living_notes(self.places, wanted, self._own or b"", None, self._counting)}

    def close(self) -> None:
        """Give up ownership, and the folder if nothing is recorded."""
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
            # Locked before it has its name: to those of other pid namespaces who has no lock is dead.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(new, own + b"/" + owners.LOCK)
        except OSError:
            os.close(fd)
            raise
        self._own, self._lock_fd = own, fd
        found = os.lstat(self.folder)
        self._counting = found.st_dev if found.st_nlink > _EMPTY_LINKS else -1
        return own


class DeadOwner:
    """The records of an owner that has died, taken over until `close`."""

    def __init__(self, path: bytes) -> None:
        self.path = path

    def records(self) -> Iterator[tuple[Note, bytes, bool]]:
        """Yield each note of what may be left, its path and whether it is a directory; drop the others."""
        for name in os.listdir(self.path):
            if name in (owners.LOCK, _NEW_LOCK):
                continue
            record = _read(self.path, name)
            if record is None:
                _unlink(self.path + b"/" + name)
            else:
                yield record

    def close(self) -> None:
        """Leave the rest to whoever cleans next; the folder goes if nothing is recorded any more."""
        _end(self.path)


def dead_owners(folder: bytes) -> Iterator[DeadOwner]:
    """Yield the owners that have ended without `close`, each taken over; the caller closes them."""
    for name in _names_in(folder):
        path = folder + b"/" + name
        if owners.lives(path):
            continue
        try:
            taken = folder + b"/" + owners.new_name()
            os.rename(path, taken)
        except OSError:
            continue  # somebody else has taken it over
        yield DeadOwner(taken)


def is_noted(
    places: Sequence[bytes], identity: Identity, states: Sequence[bytes], besides: bytes = b""
) -> bool:
    """Tell whether a living owner, `besides` one folder, has a note of one of the states about an object."""
    return find_note(places, identity, states, besides) is not None


def find_note(
    places: Sequence[bytes],
    identity: Identity,
    states: Sequence[bytes],
    besides: bytes = b"",
    user: int | None = None,
) -> bytes | None:
    """Return the path of a living owner's note about an object; `is_noted` says which.

    It is an owner of this user's, or of another `user`, whose records only root can read.
    """
    wanted = _ends(identity, states)
    return next((path for path, _ in _living_notes(places, wanted, besides, user)), None)


def _ends(identity: Identity, states: Sequence[bytes]) -> dict[bytes, tuple[int, int]]:
    """Return how the names of notes about an object in some states end, each with the object."""
    return {b"%d.%d.%b" % (*identity[:2], state): identity[:2] for state in states}


def _living_notes(
    places: Sequence[bytes],
    wanted: dict[bytes, tuple[int, int]],
    besides: bytes,
    user: int | None = None,
    counting: int = -1,
) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Yield each note of a living owner whose name has a wanted end: its path, and its object.

    In the file system `counting` what a folder's links say is believed.
    """
    for place in places:
        found = _private(place, user)
        if found is None:
            continue
        # Most often there is no other owner: no need to list anything then.
        links = _EMPTY_LINKS + besides.startswith(place + b"/")
        if found.st_dev == counting and found.st_nlink == links:
            continue
        for name in _names_in(place):
            path = place + b"/" + name
            if path == besides:
                continue
            for note in _names_in(path):
                noted = wanted.get(note.partition(b".")[2])
                if noted is not None and owners.lives(path):
                    yield path + b"/" + note, noted


def is_made_by(user: int, identity: Identity) -> bool:
    """Tell whether an object is the placeholder of a living owner of that user, where that can be known."""
    return find_note(record_places(None, user=user), identity, (MADE, GOING), user=user) is not None


def refuse_others(path: bytes, found: os.stat_result, parent_fd: int) -> None:
    """Raise PlaceholderError for what another user's owner may have made: it goes without our being asked."""
    if found.st_uid == os.geteuid() or not may_be_placeholder(found):
        return
    # Root sees all records.  Others need no cover where they may not write: then nobody inside can, either.
    theirs = is_made_by(found.st_uid, identity_of(found)) if os.geteuid() == 0 else may_write_below(parent_fd)
    if theirs:
        raise PlaceholderError(
            f"{os.fsdecode(path)} is empty and belongs to user {found.st_uid}: if a command of theirs runs "
            "here, start this one when it has ended; else remove it"
        )


def private_folder(path: bytes, make: bool = True) -> bytes | None:
    """Make a folder that only this user can enter, or check one that is there; None when it is not such."""
    try:
        if make:
            os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError:
        return None
    return path if _is_private(path) else None


def state_folder(
    runtime_dir: bytes | None, temp_dir: bytes = b"/tmp", make: bool = True, run_dir: bytes = b"/run"
) -> bytes | None:
    """Return this user's private folder for records, made unless told otherwise; None when there is none.

    It lies in `runtime_dir` (XDG_RUNTIME_DIR) or what usually is that, if it belongs to this user; for root
    in `run_dir`; else in the temporary folder, where a name that somebody else has taken is refused.
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
    """Return every folder where a user's records may be; the best first, none of them looked at."""
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
    """Return what a folder is that only this user, or another, can enter; None for any other."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    owner = os.geteuid() if user is None else user
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == owner and not found.st_mode & 0o077
    return found if private else None


def _read(folder: bytes, name: bytes) -> tuple[Note, bytes, bool] | None:
    """Return a note of what its owner made or was about to make; None for any other."""
    try:
        fd = os.open(folder + b"/" + name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = os.read(fd, _MOST_BYTES)
    finally:
        os.close(fd)
    number, *said = name.split(b".")
    old, kind, path = content[:_IDENTITY_BYTES].split(), content[_IDENTITY_BYTES:][:2], content[44:]
    directory = kind == b"d "
    if len(old) != 2 or kind not in (b"d ", b"f ") or not path.startswith(b"/") or said[2:] == [USED]:
        return None
    try:
        device, inode = (int(value) for value in (said[:2] if len(said) == 3 else old))
    except ValueError:
        return None  # nothing that an owner wrote
    identity = (device, inode, stat.S_IFDIR if directory else stat.S_IFREG) if inode else None
    return Note(folder, number, said[2] if len(said) == 3 else NEW, identity), path, directory


def _end(folder: bytes) -> None:
    """Remove an owner's folder if it holds no record; else leave it to whoever cleans next."""
    try:
        if set(os.listdir(folder)) <= {owners.LOCK, _NEW_LOCK}:
            _unlink(folder + b"/" + _NEW_LOCK)
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
