"""What an owner of placeholders writes down before it makes one, so that others can clean up after its death.

`<folder>/<pid>-<random>/` belongs to one owner while it holds the lock of the `lock` in it; each other file
there is one record, named by its number.  A record is its placeholder's device, inode, kind and path; device
and inode are 0 until it was made.
"""

from __future__ import annotations

import fcntl
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from execserver.sandbox.plan import Identity

_LOCK = b"lock"
_NEW_LOCK = b"new-lock"
_IDENTITY = b"%020d %020d "
_IDENTITY_BYTES = 42
_MOST_BYTES = 64 * 1024


class Record:
    """One placeholder that was made or was about to be (`identity` None)."""

    __slots__ = ("directory", "identity", "name", "path")

    def __init__(self, name: bytes, path: bytes, directory: bool, identity: Identity | None) -> None:
        self.name = name
        self.path = path
        self.directory = directory
        self.identity = identity


class RecordFolder:
    """The records of this process below a private folder; nothing is made there before the first one."""

    def __init__(self, folder: bytes) -> None:
        self._folder = folder
        self._own: bytes | None = None
        self._lock_fd = -1
        self._count = 0

    def add(self, path: bytes, directory: bool) -> bytes:
        """Note a placeholder that is about to be made; return the record's name.  Raises OSError."""
        own = self._own or self._begin()
        self._count += 1
        name = b"%d" % self._count
        fd = os.open(own + b"/" + name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, _IDENTITY % (0, 0) + (b"d " if directory else b"f ") + path)
        finally:
            os.close(fd)
        return name

    def identify(self, name: bytes, identity: Identity) -> None:
        """Note which object was made.  Raises OSError."""
        fd = os.open(self._path(name), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(fd, _IDENTITY % identity[:2], 0)
        finally:
            os.close(fd)

    def drop(self, name: bytes) -> None:
        """Forget a placeholder that is not there any more."""
        _unlink(self._path(name))

    def close(self) -> None:
        """Give up ownership, and the folder if nothing is recorded."""
        if self._own is not None:
            _end(self._own, self._lock_fd)
            self._own = None

    @staticmethod
    def dead_owners(folder: bytes) -> Iterator[DeadOwner]:
        """Yield the owners that have ended without `close`, each locked; the caller closes them."""
        try:
            names = os.listdir(folder)
        except OSError:
            return
        for name in names:
            path = folder + b"/" + name
            fd = _locked(path + b"/" + _LOCK)
            if fd is not None:
                yield DeadOwner(path, fd)

    def _path(self, name: bytes) -> bytes:
        assert self._own is not None
        return self._own + b"/" + name

    def _begin(self) -> bytes:
        own = self._folder + b"/%d-%s" % (os.getpid(), os.urandom(4).hex().encode())
        os.mkdir(own, 0o700)
        new = own + b"/" + _NEW_LOCK
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Locked before it has its name: a folder whose lock can be had belongs to somebody dead.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(new, own + b"/" + _LOCK)
        except OSError:
            os.close(fd)
            raise
        self._own, self._lock_fd = own, fd
        return own


class DeadOwner:
    """The records of an owner that has died; locked until `close`."""

    def __init__(self, path: bytes, lock_fd: int) -> None:
        self._path = path
        self._lock_fd = lock_fd

    def records(self) -> Iterator[Record]:
        """Yield what was recorded; what cannot be understood was never made, and is dropped."""
        for name in os.listdir(self._path):
            if name in (_LOCK, _NEW_LOCK):
                continue
            record = _read(self._path, name)
            if record is None:
                _unlink(self._path + b"/" + name)
            else:
                yield record

    def drop(self, record: Record) -> None:
        """Forget a placeholder that is not there any more."""
        _unlink(self._path + b"/" + record.name)

    def close(self) -> None:
        """Unlock; the folder goes if nothing is recorded any more."""
        _end(self._path, self._lock_fd)


def private_folder(path: bytes, make: bool = True) -> bytes | None:
    """Make a folder that only this user can enter, or check one that is there; None when it is not such."""
    try:
        if make:
            os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError:
        return None
    try:
        found = os.lstat(path)
    except OSError:
        return None
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return path if private else None


def state_folder(
    runtime_dir: bytes | None, temp_dir: bytes = b"/tmp", make: bool = True, run_dir: bytes = b"/run"
) -> bytes | None:
    """Return this user's private folder for records, made unless told otherwise; None when there is none.

    It lies in `runtime_dir` (XDG_RUNTIME_DIR) or what usually is that, if it belongs to this user; for root
    in `run_dir`; else in the temporary folder, where a name that somebody else has taken is refused.
    """
    user = os.geteuid()
    for place in (runtime_dir, run_dir + b"/user/%d" % user):
        if place and os.path.isabs(place) and _is_own_folder(place):
            folder = private_folder(place + b"/execserver", make)
            if folder is not None:
                return folder
    name = b"/execserver-records-%d" % user
    places = (run_dir, temp_dir) if user == 0 else (temp_dir,)
    found = (private_folder(place + name, make) for place in places)
    return next((folder for folder in found if folder is not None), None)


def _is_own_folder(path: bytes) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _read(folder: bytes, name: bytes) -> Record | None:
    try:
        fd = os.open(folder + b"/" + name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = os.read(fd, _MOST_BYTES)
    finally:
        os.close(fd)
    numbers, kind, path = content[:_IDENTITY_BYTES].split(), content[_IDENTITY_BYTES:][:2], content[44:]
    if len(numbers) != 2 or kind not in (b"d ", b"f ") or not path.startswith(b"/"):
        return None
    directory = kind == b"d "
    device, inode = int(numbers[0]), int(numbers[1])
    identity = (device, inode, stat.S_IFDIR if directory else stat.S_IFREG) if inode else None
    return Record(name, path, directory, identity)


def _locked(path: bytes) -> int | None:
    """Open and lock a dead owner's lock; None when the owner lives or there is no lock."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _end(folder: bytes, lock_fd: int) -> None:
    """Remove an owner's folder if it holds no record; else leave it unlocked for whoever cleans next."""
    try:
        if set(os.listdir(folder)) <= {_LOCK, _NEW_LOCK}:
            _unlink(folder + b"/" + _NEW_LOCK)
            _unlink(folder + b"/" + _LOCK)
            os.rmdir(folder)
    except OSError:
        pass
    os.close(lock_fd)


def _unlink(path: bytes) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
