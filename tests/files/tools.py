"""Small helpers of the file tests: writing, reading and describing trees."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


def put(path: bytes, content: bytes = b"") -> bytes:
    """Write a file and return its path."""
    with open(path, "wb") as file:
        file.write(content)
    return path


def get(path: bytes) -> bytes:
    """Return the content of a file."""
    with open(path, "rb") as file:
        return file.read()


def mode_of(path: bytes) -> int:
    """Return the permission bits."""
    return stat.S_IMODE(os.stat(path).st_mode)


@contextmanager
def bound_socket(path: bytes) -> Iterator[None]:
    """A Unix socket in the file system, whose path may be longer than an address."""
    folder, name = os.path.split(path)
    with socket.socket(socket.AF_UNIX) as server:
        fd = os.open(folder, DIRECTORY)
        try:
            server.bind(b"/proc/self/fd/%d/%s" % (fd, name))
        finally:
            os.close(fd)
        yield


def dig(root: bytes, depth: int) -> None:
    """Make `depth` directories, one in another, all named `d`, below a root; longer than any path may be."""
    fd = os.open(root, DIRECTORY)
    for _ in range(depth):
        os.mkdir(b"d", dir_fd=fd)
        inner = os.open(b"d", DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open(b"bottom", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.close(fd)


def depth_of(root: bytes) -> int:
    """Return how many directories named `d` are one in another below a root, with `bottom` in the last."""
    fd = os.open(root, DIRECTORY)
    depth = 0
    while True:
        try:
            inner = os.open(b"d", DIRECTORY, dir_fd=fd)
        except FileNotFoundError:
            os.stat(b"bottom", dir_fd=fd)
            os.close(fd)
            return depth
        os.close(fd)
        fd = inner
        depth += 1


class PeakMemory:
    """Measures by how much this process grew at its largest since the measure was made."""

    def __init__(self) -> None:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the highest resident size starts again from the present one
        self._start = _status_bytes("VmRSS")

    def growth(self) -> int:
        """Return bytes."""
        return _status_bytes("VmHWM") - self._start


def _status_bytes(name: str) -> int:
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(name))
    return int(line.split()[1]) * 1024


def open_descriptors() -> set[str]:
    """Return the numbers of this process's open descriptors."""
    return set(os.listdir("/proc/self/fd"))
