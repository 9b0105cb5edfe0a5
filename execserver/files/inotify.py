"""The kernel's inotify, which Python's library does not offer.

An `Inotify` owns one descriptor, which becomes readable when something happened to what it watches.  A user
has a limited number of both (`fs.inotify` in /proc/sys): EMFILE and ENOSPC are ordinary answers here.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

IN_MODIFY = 0x2
IN_ATTRIB = 0x4
IN_MOVED_FROM = 0x40
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
IN_UNMOUNT = 0x2000
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000
IN_ONLYDIR = 0x1000000
IN_DONT_FOLLOW = 0x2000000
IN_MASK_ADD = 0x20000000
IN_ISDIR = 0x40000000

_HEAD = struct.Struct("iIII")
_READ_BYTES = 64 * 1024


class Event(NamedTuple):
    """What happened: to the watched object itself, or with a name to what it has under this name.

    The two halves of a rename have the same `cookie`; for everything else it is 0.
    """

    watch: int
    mask: int
    name: bytes
    cookie: int = 0


class Inotify:
    """One instance.  Owns its descriptor until `close`."""

    def __init__(self) -> None:
        """Raise OSError, EMFILE if the user has too many instances."""
        self._lib = _c_library()
        self.fd = self._call(self._lib.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))

    def watch(self, path: bytes, mask: int) -> int:
        """Watch an object and return the number of the watch, the same one for the same object.

        Raises OSError, ENOSPC if the user has too many watches.
        """
        return self._call(self._lib.inotify_add_watch(self.fd, path, ctypes.c_uint32(mask)))

    def unwatch(self, watch: int) -> None:
        """End a watch; one whose object is gone has ended by itself."""
        try:
            self._call(self._lib.inotify_rm_watch(self.fd, watch))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise

    def read(self) -> list[Event]:
        """Return what happened since the last call, at most 64 KiB of it."""
        try:
            return list(_events(os.read(self.fd, _READ_BYTES)))
        except BlockingIOError:
            return []

    def close(self) -> None:
        """End every watch."""
        os.close(self.fd)

    def _call(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


@lru_cache(maxsize=1)
def _c_library() -> ctypes.CDLL:
    # One for all: only a collection would free another one.
    return ctypes.CDLL(None, use_errno=True)


def _events(data: bytes) -> Iterator[Event]:
    at = 0
    while at < len(data):
        watch, mask, cookie, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield Event(watch, mask, data[at : at + length].rstrip(b"\0"), cookie)
        at += length
