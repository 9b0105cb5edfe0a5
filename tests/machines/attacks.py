"""Attacks from inside a sandbox that may write one folder: a line for each, `NAME: held` or what it got.

    python3 -I attacks.py FOLDER      FOLDER holds `inside` (writable), `outside` (readable), `denied`

Every call that the filter of the sandbox refuses is made with zeros as its arguments, by its number on this
machine: the tables are those of the product.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from execserver.sandbox.kernel.seccomp_numbers import LACKED, NUMBERS
from execserver.sandbox.kernel.seccomp_table import ABSENT, ALWAYS, RESTRICTED

MACHINE = os.uname().machine
_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_BIND, _REMOUNT, _DETACH = 4096, 32, 2


def write(path: Path) -> Callable[[], object]:
    """Return the act of making or changing a file."""
    return lambda: path.write_text("changed")


def connect(family: int, address: tuple[str, int] | str) -> Callable[[], object]:
    """Return the act of connecting somewhere."""
    return lambda: socket.socket(family, socket.SOCK_STREAM).connect(address)


def through_a_link(inside: Path, outside: Path) -> object:
    """Write through a symlink that lies where writing is allowed."""
    (inside / "link").symlink_to(outside)
    return (inside / "link" / "secret").write_text("changed")


def moved(inside: Path, outside: Path) -> object:
    """Take a file away."""
    return (outside / "secret").rename(inside / "secret")


def in_a_namespace(act: Callable[[], object]) -> str:
    """Do something in a child that has every right in a user and a mount namespace of its own, if it may."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            if not _LIBC.unshare(_CLONE_NEWUSER | _CLONE_NEWNS):
                act()
                status = 0
        finally:
            os._exit(status)
    if os.waitpid(pid, 0)[1]:
        raise PermissionError(errno.EPERM, "held")
    return "done"


def uncovered(denied: Path) -> None:
    """Take away what covers a folder, and read what is below."""
    _LIBC.umount2(os.fsencode(denied), _DETACH)
    (denied / "secret").read_text()


def remounted(outside: Path) -> None:
    """Take the write protection off a folder, and write there."""
    for place in (outside, Path("/")):
        _LIBC.mount(None, os.fsencode(place), None, _REMOUNT | _BIND, None)
    (outside / "secret").write_text("changed")


def system_call(name: str) -> None:
    """Make a system call by its number, with zeros.  Raises OSError."""
    if _LIBC.syscall(NUMBERS[MACHINE][name], *[ctypes.c_long(0)] * 6) < 0:
        raise OSError(ctypes.get_errno(), name)


def refused_calls() -> list[str]:
    """Return the calls that the filter should refuse and that end in another way."""
    wrong = []
    for name, condition, _ in RESTRICTED:
        if condition not in (ALWAYS, ABSENT) or name in LACKED[MACHINE]:
            continue
        expected = errno.EPERM if condition == ALWAYS else errno.ENOSYS
        try:
            system_call(name)
        except OSError as error:
            if error.errno == expected:
                continue
            wrong.append(f"{name} ({errno.errorcode.get(error.errno or 0)})")
        else:
            wrong.append(name)
    return wrong


def acts(root: Path) -> dict[str, Callable[[], object]]:
    """Return what is tried, by name."""
    inside, outside, denied = root / "inside", root / "outside", root / "denied"
    return {
        "write outside": write(outside / "secret"),
        "make a file outside": write(outside / "new"),
        "make a file in /etc": write(Path("/etc/new")),
        "make a file in home": write(Path.home() / "new"),
        "make a file in /tmp": write(Path("/tmp/new")),
        "write through a symlink": lambda: through_a_link(inside, outside),
        "take a file away": lambda: moved(inside, outside),
        "link a file outside": lambda: os.link(outside / "secret", outside / "linked"),
        "read what is denied": (denied / "secret").read_text,
        "list what is denied": lambda: os.listdir(denied)[0],
        "read it by a descriptor": lambda: Path("/proc/self/cwd/../denied/secret").read_text(),
        "connect to loopback": connect(socket.AF_INET, ("127.0.0.1", 9)),
        "connect to an abstract socket": connect(socket.AF_UNIX, "\0nobody"),
        "listen": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).listen(),
        "a raw socket": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
        "become root": lambda: os.setresuid(0, 0, 0) if os.getuid() else os.setresuid(1, 1, 1),
        "uncover what is denied": lambda: in_a_namespace(lambda: uncovered(denied)),
        "make outside writable": lambda: in_a_namespace(lambda: remounted(outside)),
    }


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(root: str) -> int:
    """Try everything; what is held back raises OSError."""
    for name, act in acts(Path(root)).items():
        try:
            got = act()
        except OSError:
            say(f"{name}: held")
        else:
            say(f"{name}: {got!r}")
    wrong = refused_calls()
    say(f"system calls: {', '.join(wrong) or 'held'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
