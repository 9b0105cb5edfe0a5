"""`__main__` of dist/execserver.pyz: unpacks the zip for this Python once, then becomes the program in it.

It follows the rules of the one file's launcher (launcher/cache.c): the same places in the same order, none
that others can write to, a tree is there completely or not at all, locks tell which trees are in use.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

TREES_FILE = "trees"  # a line for each kind of interpreter that is served: its tag and the name of its tree
COMMON, START = "any", "boot.py"
UNFINISHED = ".new-"
DAY_S = 24 * 60 * 60
KEPT_UNUSED_S = 30 * DAY_S
LOCK_WAIT_S = 20.0


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
    return f"{kind}{version}-{os.uname().machine}-{library}"


def places() -> Iterator[str]:
    """Yield the folders to try, in order."""
    chosen = os.environ.get("EXECSERVER_CACHE_DIR")
    if chosen:
        yield chosen
        return
    if os.environ.get("XDG_CACHE_HOME"):
        yield os.environ["XDG_CACHE_HOME"] + "/execserver"
    if os.environ.get("HOME"):
        yield os.environ["HOME"] + "/.cache/execserver"
    for folder in dict.fromkeys((os.environ.get("TMPDIR") or "/tmp", "/tmp", "/dev/shm", "/var/tmp")):
        yield f"{folder}/execserver-{os.geteuid()}"


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
    return real


def lock_tree(place: str, name: str) -> tuple[str, int] | None:
    """Return the tree in a place and the descriptor that keeps it from being removed, or None."""
    try:
        real = check(place)
        tree = f"{real}/{name}"
        lock = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    held = os.fstat(lock)
    if held.st_uid != os.geteuid() or held.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unusable("others can write to the tree in it")
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if not os.path.samestat(os.lstat(tree), held):
            raise FileNotFoundError
    except (BlockingIOError, FileNotFoundError):
        os.close(lock)
        return None
    if not 0 <= time.time() - held.st_mtime < DAY_S:
        note_use(real, name)
    os.set_inheritable(lock, True)
    return tree, lock


def note_use(place: str, name: str) -> None:
    """Once a day: mark the tree as used and remove those that nobody uses."""
    try:
        os.utime(f"{place}/{name}")
        with open(f"{place}/.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            prune(place, name)
    except OSError:
        return


def prune(place: str, current: str) -> None:
    """Remove old trees and what interrupted starts have left; the caller holds the place's lock."""
    for name in os.listdir(place):
        unfinished = name.startswith(UNFINISHED)
        is_tree = len(name) == len(current) and not set(name) - set("0123456789abcdef")
        if not unfinished and (not is_tree or name == current):
            continue
        path = f"{place}/{name}"
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if time.time() - os.fstat(folder).st_mtime >= (0 if unfinished else KEPT_UNUSED_S):
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                doomed = path if unfinished else f"{place}/{UNFINISHED}{name}"
                os.rename(path, doomed)
                shutil.rmtree(doomed, ignore_errors=True)
        except BlockingIOError:
            pass  # in use
        finally:
            os.close(folder)


def install(place: str, name: str, archive: str) -> None:
    """Unpack into a place, unless another start has done it meanwhile.  Raises Unusable and OSError."""
    if not place.startswith("/"):
        raise Unusable("it is no full path")
    os.makedirs(place, 0o700, exist_ok=True)
    real = check(place)
    with open(f"{real}/.lock", "w") as lock:
        deadline = time.monotonic() + LOCK_WAIT_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.02)
        if not os.path.isdir(f"{real}/{name}"):
            fill(real, name, archive)
            prune(real, name)


def fill(place: str, name: str, archive: str) -> None:
    """Unpack the parts of the zip for this interpreter."""
    import zipfile

    fresh = f"{place}/{UNFINISHED}{os.getpid()}-{time.time_ns() % 10**9}"
    os.mkdir(fresh, 0o700)
    folder = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with zipfile.ZipFile(archive) as packed:
            for member in packed.namelist():
                part, _, path = member.partition("/")
                if path and part in (COMMON, tag()):
                    target = f"{fresh}/{path}"
                    os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
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


def find_tree(name: str, archive: str) -> tuple[str, int] | None:
    """Return a tree and its lock, unpacked now if it was nowhere; None after telling why there is none."""
    refused: dict[str, str] = {}
    for place in places():
        try:
            found = lock_tree(place, name)
            if found:
                return found
        except (OSError, Unusable) as error:
            refused[place] = str(error)
    for place in places():
        if place in refused:
            continue
        try:
            install(place, name, archive)
            found = lock_tree(place, name)
            if found:
                for other, why in refused.items():
                    sys.stderr.write(f"execserver: {other} is not used: {why}\n")
                return found
        except (OSError, Unusable) as error:
            refused[place] = str(error)
    sys.stderr.write("execserver: there is no folder to unpack into\n")
    for place, why in refused.items():
        sys.stderr.write(f"  {place}: {why}\n")
    sys.stderr.write(
        "  What to do: name a folder that is yours alone, by its full path, in EXECSERVER_CACHE_DIR\n"
    )
    return None


def main() -> int:
    """Become the program; return only when that is not possible."""
    trees = dict(line.split() for line in _read(TREES_FILE).splitlines())
    if tag() not in trees:
        sys.stderr.write(
            f"execserver: this file serves {', '.join(trees)}, and this Python is {tag()}\n"
            "  What to do: start it with one of those, or take the file without .pyz, which needs no Python\n"
        )
        return 1
    archive = os.path.realpath(globals()["__loader__"].archive)
    found = find_tree(trees[tag()], archive)
    if found is None:
        return 1
    tree, lock = found
    words = [sys.executable, "-I", "-S", "-Xutf8", f"{tree}/{START}", str(lock), archive, *sys.argv]
    return os.execve(sys.executable, words, given_environment())


def _read(name: str) -> str:
    """Return a small file of the zip this code comes from."""
    loader = globals()["__loader__"]
    text: str = loader.get_data(f"{loader.archive}/{name}").decode()
    return text


if __name__ == "__main__":
    sys.exit(main())
