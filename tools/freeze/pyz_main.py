"""`__main__` of dist/execserver.pyz: unpacks the zip for this Python once, then becomes the program in it.

It follows the rules of the one file's launcher (launcher/cache.c): the same places in the same order, of
which the first usable one counts, none that others can write to, a tree is there completely or not at all,
locks that only those can hold who may write there, and no start depends on one.  Where sandboxes may often
write, a tree is compared with the zip before anything of it runs, and no compiled modules are taken from it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterator

TREES_FILE = "trees"  # a line for each kind of interpreter that is served: its tag and the name of its tree
COMMON, START = "any", "boot.py"
NOWHERE = "/dev/null/none"  # in it is nothing, and nothing can be made
UNFINISHED, IN_USE, LOCK = ".new-", ".use-", ".lock"
DAY_S = 24 * 60 * 60
KEPT_UNUSED_S = 30 * DAY_S
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # they say nothing about what was asked for
LOCK_WAIT_S = 5.0
NO_WAITING = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC


class Unusable(Exception):
    """A place cannot hold the tree; the text says why."""


def tag() -> str:
    """Return what compiled modules must have been made for to be loaded here; also a folder of the zip."""
    kind = "cp" if sys.implementation.name == "cpython" else sys.implementation.name
    try:
        library = (os.confstr("CS_GNU_LIBC_VERSION") or "other").partition(" ")[0]
    except (OSError, ValueError):
        library = "other"
    version = f"{sys.version_info[0]}{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
    # Under a 64-bit kernel a 32-bit Python is told the kernel's kind of machine.
    machine = os.uname().machine + ("" if sys.maxsize > 2**32 else "_32bit")
    return f"{kind}{version}-{machine}-{library}"


def parts(mark: str) -> tuple[str, str, str]:
    """Return the folders that an interpreter gets: of all, of its kind of machine, and of its tag alone."""
    return COMMON, mark.partition("-")[2], mark


def places() -> Iterator[tuple[str, bool]]:
    """Yield the folders to try, in order, and whether sandboxes may often write there."""
    chosen = os.environ.get("EXECSERVER_CACHE_DIR")
    if chosen:
        yield chosen, False
        return
    if os.environ.get("XDG_CACHE_HOME"):
        yield os.environ["XDG_CACHE_HOME"] + "/execserver", False
    if os.path.isdir(os.environ.get("HOME", "")):  # one that is not there is not ours to make
        yield os.environ["HOME"] + "/.cache/execserver", False
    for folder in dict.fromkeys((os.environ.get("TMPDIR") or "/tmp", "/tmp", "/dev/shm", "/var/tmp")):
        yield f"{folder}/execserver-{os.geteuid()}", True


def check(place: str) -> str:
    """Return the resolved place.  Raises Unusable; FileNotFoundError when it is not there."""
    if not place.startswith("/"):
        raise Unusable("it is no full path")
    real = os.path.realpath(place, strict=True)
    if os.statvfs(real).f_flag & os.ST_NOEXEC:
        raise Unusable("nothing can be executed there (mounted noexec)")
    folder, me, root = real, os.geteuid(), os.stat("/").st_uid
    while folder != "/":
        found = os.lstat(folder)
        own = folder == real
        if found.st_uid not in ((me,) if own else (me, 0, root)):
            raise Unusable(f"{folder} belongs to another user")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and (own or not found.st_mode & stat.S_ISVTX):
            raise Unusable(f"others can write to {folder}")
        folder = os.path.dirname(folder)
    if lacks_our_rights(real):
        os.chmod(real, 0o700)
    return real


def lacks_our_rights(path: str) -> bool:
    """Tell whether a folder is ours, and we may not even look into it, as a strange umask once made them."""
    found = os.lstat(path)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & 0o500 != 0o500


def find_tree(place: str, name: str, archive: str, doubted: bool) -> tuple[str, int] | None:
    """Return the tree in a place and the descriptor that keeps it from being removed, or None.

    One that is not ours is put aside.  Raises OSError and Unusable.
    """
    try:
        real = check(place)
    except FileNotFoundError:
        return None
    tree = f"{real}/{name}"
    try:
        folder = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in SHORTAGES:
            raise
        put_aside(real, name, doubted or lacks_our_rights(tree))
        return None
    held = os.fstat(folder)
    os.close(folder)
    if not doubted and (held.st_uid != os.geteuid() or held.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise Unusable("others can write to the tree in it")
    lock, locked = use_lock(real, name)
    if not locked or not 0 <= time.time() - held.st_mtime < DAY_S:
        note_use(real, name, locked and not doubted)
    if doubted:
        from pyz_proof import is_proven  # type: ignore[import-not-found]  # beside this one in the zip

        if not is_proven(tree, archive, wanted):
            os.close(lock)
            put_aside(real, name, doubted)
            return None
    os.set_inheritable(lock, True)
    return tree, lock


def put_aside(place: str, name: str, doubted: bool) -> None:
    """Put what lies in the way of our tree out of it; where nobody may do that to our own, it is refused."""
    if not doubted:
        raise Unusable("its tree cannot be opened")
    os.rename(f"{place}/{name}", unfinished(place))


def unfinished(place: str) -> str:
    """Return a name for what is being filled or removed."""
    return f"{place}/{UNFINISHED}{os.getpid()}-{time.time_ns() % 10**9}"


def use_lock(place: str, name: str) -> tuple[int, bool]:
    """Return a descriptor that holds the lock on a tree, and whether it does.

    Without a lock a start goes on: that is a stranger's, or the place is read-only, or locks do not work.
    """
    try:
        lock = open_lock(f"{place}/{IN_USE}{name}")
    except OSError as error:
        if error.errno in SHORTAGES:
            raise
        return os.open(f"{place}/{name}", os.O_RDONLY | os.O_DIRECTORY), False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return lock, False
    return lock, True


def open_lock(path: str) -> int:
    """Open a file for locks, made if need be: who may not write there cannot open it, nor lock it."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | NO_WAITING, 0o200)


def wanted(packed: zipfile.ZipFile) -> Iterator[tuple[str, str]]:
    """Yield the members of a zip that belong into the tree of this interpreter, and their paths in it."""
    mine = parts(tag())
    for member in packed.namelist():
        part, _, path = member.partition("/")
        if path and part in mine:
            yield member, path


def note_use(place: str, name: str, tidy: bool) -> None:
    """Once a day, or when it must be told without a lock: mark the tree as used; remove what nobody uses.

    Not where strangers write (`tidy`): what they have left there may be of any size and depth.
    """
    try:
        os.utime(f"{place}/{name}")
        if tidy:
            lock = open_lock(f"{place}/{LOCK}")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                prune(place, name)
            finally:
                os.close(lock)
    except OSError:
        return


def prune(place: str, current: str) -> None:
    """Remove old trees and what interrupted starts have left; the caller holds the place's lock."""
    for name in os.listdir(place):
        is_rubbish = name.startswith(UNFINISHED)
        is_tree = len(name) == len(current) and not set(name) - set("0123456789abcdef")
        if not is_rubbish and (not is_tree or name == current):
            continue
        path, kept = f"{place}/{name}", KEPT_UNUSED_S if is_tree else 0
        lock = -1 if is_rubbish else lock_of_unused(f"{place}/{IN_USE}{name}")
        # Looked at while it is held: whoever starts meanwhile and cannot have the lock sets the time.
        if lock is not None and time.time() - os.lstat(path).st_mtime >= kept:
            doomed = path if is_rubbish else f"{place}/{UNFINISHED}{name}"
            os.rename(path, doomed)
            shutil.rmtree(doomed, ignore_errors=True)
            if is_tree and lock >= 0:
                os.unlink(f"{place}/{IN_USE}{name}")
        if lock is not None and lock >= 0:
            os.close(lock)


def lock_of_unused(path: str) -> int | None:
    """Return a tree's lock, -1 if it has none; None when somebody runs from the tree."""
    try:
        lock = os.open(path, os.O_WRONLY | NO_WAITING)
    except FileNotFoundError:
        return -1
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def install(place: str, name: str, archive: str, doubted: bool) -> None:
    """Unpack into a place, unless another start has done it meanwhile.  Raises Unusable and OSError."""
    if not place.startswith("/"):
        raise Unusable("it is no full path")
    os.makedirs(place, 0o700, exist_ok=True)
    real = check(place)
    try:
        lock = open_lock(f"{real}/{LOCK}")
    except OSError:
        lock = -1
    try:
        # A lock where others write may be anybody's: there it is not waited for.
        locked = lock >= 0 and wait_for(lock, f"{real}/{name}", 0 if doubted else LOCK_WAIT_S)
        if not os.path.isdir(f"{real}/{name}"):
            fill(real, name, archive, doubted)
            if locked and not doubted:
                prune(real, name)
    finally:
        if lock >= 0:
            os.close(lock)


def wait_for(lock: int, tree: str, limit: float) -> bool:
    """Take a place's lock; False if it cannot be had, or somebody else has unpacked the tree."""
    deadline = time.monotonic() + limit
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline or os.path.isdir(tree):
                return False
            time.sleep(0.02)
        except OSError:
            return False
        else:
            return True


def fill(place: str, name: str, archive: str, doubted: bool) -> None:
    """Unpack the parts of the zip for this interpreter."""
    import zipfile

    fresh = unfinished(place)
    os.mkdir(fresh, 0o700)
    folder = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with zipfile.ZipFile(archive) as packed:
            for member, path in wanted(packed):
                target = f"{fresh}/{path}"
                # Where modules are compiled the program would make this folder with whatever umask it has.
                inner = os.path.dirname(target) + ("" if doubted else "/__pycache__")
                os.makedirs(inner, 0o700, exist_ok=True)
                with open(target, "wb", opener=_private) as file:
                    file.write(packed.read(member))
        _sync(folder)
        os.rename(fresh, f"{place}/{name}")
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if not os.path.isdir(f"{place}/{name}"):
            raise
    finally:
        os.close(folder)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync(folder: int) -> None:
    """Write the file system of a folder to disk, else a power cut could leave a tree with holes in it."""
    import ctypes

    ctypes.CDLL(None).syncfs(folder)


def given_environment() -> dict[bytes, bytes]:
    """Return the environment as the caller gave it: this interpreter may have changed LC_CTYPE."""
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = [entry.partition(b"=") for entry in file.read().split(b"\0") if b"=" in entry[1:]]
    except OSError:
        return dict(os.environb)
    return {name: value for name, _, value in entries}


def obtain_tree(name: str, archive: str) -> tuple[str, int, bool] | None:
    """Return a tree, what holds it, and whether sandboxes may write there; unpacked now if need be.

    The first usable place counts, and no other.  None after telling why there is none.
    """
    refused: dict[str, str] = {}
    for place, in_temporary in places():
        try:
            doubted = in_temporary or is_moved(place)
            found = find_tree(place, name, archive, doubted)
            if not found:
                install(place, name, archive, doubted)
                doubted = in_temporary or is_moved(place)
                for other, why in refused.items():
                    sys.stderr.write(f"execserver: {other} is not used: {why}\n")
                found = find_tree(place, name, archive, doubted)
            if found:
                return (*found, doubted)
            refused[place] = "what was unpacked is not there any more"
        except (OSError, Unusable) as error:
            if isinstance(error, OSError) and error.errno in SHORTAGES:
                sys.stderr.write(f"execserver: {error}\n  What to do: allow more open files (`ulimit -n`)\n")
                return None
            refused[place] = str(error)
    sys.stderr.write("execserver: there is no folder to unpack into\n")
    for place, why in refused.items():
        sys.stderr.write(f"  {place}: {why}\n")
    sys.stderr.write(
        "  What to do: name a folder that is yours alone, by its full path, in EXECSERVER_CACHE_DIR\n"
    )
    return None


def is_moved(place: str) -> bool:
    """Tell whether a place lies behind a link that our user could replace."""
    if os.path.realpath(place) == place:
        return False
    from pyz_proof import links_are_roots

    try:
        return not links_are_roots(place)
    except OSError:
        return True  # not there yet, behind a link or not: asked again once it is


def fill_stdio() -> None:
    """Where stdio is closed, what is opened next would be the program's, and take what is written there."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (file := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(file, True)
    os.close(file)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def main() -> int:
    """Become the program; return only when that is not possible."""
    fill_stdio()
    loader = globals()["__loader__"]
    lines = loader.get_data(f"{loader.archive}/{TREES_FILE}").decode().splitlines()
    trees = dict(line.split() for line in lines)
    if tag() not in trees:
        from pyz_refusal import refusal  # type: ignore[import-not-found]

        sys.stderr.write(refusal([*trees], tag()))
        return 1
    archive = os.path.realpath(loader.archive)
    # One that takes the owner's rights would leave a tree that no start can use, nor put right.
    mask = os.umask(0o077)
    found = obtain_tree(trees[tag()], archive)
    os.umask(mask)
    if found is None:
        return 1
    tree, lock, doubted = found
    # Compiled modules are none of the zip's: they cannot be compared with anything.
    options = ("-B", f"-Xpycache_prefix={NOWHERE}") if doubted else ()
    words = [sys.executable, "-I", "-S", "-Xutf8", *options, f"{tree}/{START}", str(lock), archive, *sys.argv]
    return os.execve(sys.executable, words, given_environment())


if __name__ == "__main__":
    sys.exit(main())
