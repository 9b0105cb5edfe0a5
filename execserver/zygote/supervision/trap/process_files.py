"""Files as an intercepted process names them, and its open descriptors.

Everything is opened with O_PATH, so no file is read, created or waited for on behalf of the process.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from execserver.sandbox.kernel.syscalls import Kernel

MOST_DESCRIPTORS = 256  # of one program outside; with more its exec fails with EMFILE
# Of one process, those included that its program would not inherit: to tell them apart costs 10 us each, and
# meanwhile nobody else is served.  It is the usual soft limit of a process.
MOST_OPEN = 1024

MAGIC_LINK = (errno.EXDEV, errno.ELOOP)

_STDIO = (0, 1, 2)
_O_PATH = os.O_PATH | os.O_CLOEXEC
_RESOLVE_IN_ROOT = 0x10  # absolute symlinks and `..` stay below the given folder
_OPEN_HOW = struct.Struct("=3Q")
_ATTEMPTS = 16  # with a `..` the kernel asks to repeat a look-up that any rename or mount has crossed
_INFO_BYTES = 512
_FLAGS = b"flags:"


def opened_in_root(kernel: Kernel, tid: int, path: bytes) -> int:
    """Open what an absolute path means to a thread, in its own root; the caller owns the descriptor.

    Raises OSError; one of MAGIC_LINK where the path leads through a magic link of /proc, EAGAIN where it
    could not be followed for all the renames meanwhile.
    """
    shown = b"/proc/%d/root" % tid  # the thread's root, whatever `chroot` and mounts it has made
    root = os.open(shown, _O_PATH | os.O_DIRECTORY)
    try:
        return _followed(kernel, root, path)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
    finally:
        os.close(root)
    # A container's filter refuses the call.  Then absolute symlinks lead out of a root that is not ours, to a
    # file outside; but that has the name by which it is judged.
    return os.open(shown + path, _O_PATH)


def _followed(kernel: Kernel, root: int, path: bytes) -> int:
    how = _OPEN_HOW.pack(_O_PATH, 0, _RESOLVE_IN_ROOT)
    for _ in range(_ATTEMPTS):
        try:
            return kernel.call("openat2", root, path, how, _OPEN_HOW.size)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def is_program(mode: int) -> bool:
    """Return whether a mode is that of a file that somebody may execute."""
    return stat.S_ISREG(mode) and bool(mode & 0o111)


def found_at(here: os.stat_result, path: bytes) -> os.stat_result | None:
    """Return the stat result of a path here, outside, if it is the file with the result `here`; else None."""
    try:
        there = os.stat(path)
    except (OSError, ValueError):
        return None
    return there if here.st_ino == there.st_ino and here.st_dev == there.st_dev else None


def resolved(kernel: Kernel, tid: int, path: bytes) -> bytes:
    """Return an absolute path without `.`, `..` and doubled slashes.

    Symlinks are followed only before a `..`, where they decide what it means.  Raises OSError as
    `opened_in_root` does.
    """
    # Other symlinks stay in it: exec rules match the path as it was asked for.
    folder, _, name = path.rpartition(b"/")
    while name in (b"", b"."):
        folder, _, name = folder.rpartition(b"/")
        if not folder:
            break
    if b".." in path.split(b"/"):
        opened = opened_in_root(kernel, tid, (folder or b"/") if name != b".." else path)
        try:
            shown = os.readlink(b"/proc/self/fd/%d" % opened)
        finally:
            os.close(opened)
        return shown if name == b".." else shown.rstrip(b"/") + b"/" + name
    parts = [part for part in folder.split(b"/") if part not in (b"", b".")]
    return b"/" + b"/".join([*parts, name])


def opened_folder(tid: int, path: bytes) -> int | None:
    """Open a path here if it is the cwd of a thread, else return None; the caller owns the descriptor."""
    # Opened before it is compared: what is compared is what will be used.
    try:
        opened = os.open(path, _O_PATH | os.O_DIRECTORY)
    except OSError:
        return None
    if found_at(os.fstat(opened), b"/proc/%d/cwd" % tid) is not None:
        return opened
    os.close(opened)
    return None


def inherited_descriptors(kernel: Kernel, pidfd: int, tid: int) -> tuple[dict[int, int], int]:
    """Copy the descriptors that a program of a thread would inherit, as `copied_descriptors` does.

    Also returns a number that is free there.
    """
    # Most processes have stdio and nothing else, which is known without looking at each.
    if os.stat(b"/proc/%d/fd" % tid).st_size == len(_STDIO):  # how many there are; 0 before Linux 6.2
        try:
            return copied_descriptors(kernel, pidfd, tid, _STDIO), free_number(_STDIO)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
    numbers = open_numbers(tid)
    return copied_descriptors(kernel, pidfd, tid, numbers), free_number(numbers)


def copied_descriptors(kernel: Kernel, pidfd: int, tid: int, numbers: Iterable[int]) -> dict[int, int]:
    """Copy those of some descriptors that a program would inherit; return number there to descriptor here.

    The caller owns the copies.  Raises OSError, EMFILE above the limits.
    """
    copies: dict[int, int] = {}
    try:
        for number in numbers:
            # Every program expects these three, and to look at one costs as much as to copy it.
            if number <= 2 or _is_inherited(tid, number):
                if len(copies) >= MOST_DESCRIPTORS:
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                copies[number] = kernel.call("pidfd_getfd", pidfd, number, 0)
    except OSError:
        for copy in copies.values():
            os.close(copy)
        raise
    return copies


def open_numbers(tid: int) -> list[int]:
    """Return the numbers of the open descriptors; raises OSError EMFILE if there are too many to look at."""
    with os.scandir(b"/proc/%d/fd" % tid) as entries:
        numbers = [int(entry.name) for entry in itertools.islice(entries, MOST_OPEN + 1)]
    if len(numbers) > MOST_OPEN:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return numbers


def free_number(numbers: Sequence[int]) -> int:
    """Return the lowest number above those of stdio that is none of these."""
    return next(number for number in itertools.count(3) if number not in numbers)


def _is_inherited(tid: int, number: int) -> bool:
    try:
        opened = os.open(b"/proc/%d/fdinfo/%d" % (tid, number), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False  # another thread has closed it
    try:
        info = os.read(opened, _INFO_BYTES)
    finally:
        os.close(opened)
    at = info.find(_FLAGS)
    return at >= 0 and not int(info[at + len(_FLAGS) : info.index(b"\n", at)], 8) & os.O_CLOEXEC
