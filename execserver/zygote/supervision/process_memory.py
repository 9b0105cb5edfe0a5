"""What a trapped thread gave to execve, read from its memory within the kernel's own bounds.

Reads go through /proc/PID/mem, which answers with an error where the thread's own access would wait for
a user of userfaultfd, so nobody can hold the reader up that way.  Whoever shares the memory may change it at
any time: what is read here is a copy, and the only thing anybody outside acts on.
"""

from __future__ import annotations

import errno
import os
import struct

PATH_BYTES = 4096  # PATH_MAX
STRING_BYTES = 32 * 4096  # MAX_ARG_STRLEN
TOTAL_BYTES = 6 * 1024 * 1024  # more arguments and environment the kernel never takes
# While they are read nobody else is heard: 2 us for each string, 6 more where a read finds no other one.  The
# kernel's usual bound of 2 MiB, pointers included, ends at as many names of seven letters.
MOST_STRINGS = 128 * 1024

_PIECE = 1024  # longer than most strings, and mostly in one page
_POINTER_BYTES = 8
_FIRST_POINTERS = 32
_MOST_POINTERS = 4096  # in one read
_TOGETHER_BYTES = 64 * 1024  # strings that lie as close as this are read at once,
_TOGETHER_EACH = 256  # and many that do so on the average
_HIGHEST = (1 << 63) - TOTAL_BYTES


class Memory:
    """The memory of a process; owns a descriptor.  Reads raise OSError EFAULT, or E2BIG beyond the bounds."""

    def __init__(self, tid: int) -> None:
        self._descriptor = os.open(b"/proc/%d/mem" % tid, os.O_RDONLY | os.O_CLOEXEC)
        self._left = TOTAL_BYTES
        self._base = 0
        self._window = b""

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)

    def path(self, address: int) -> bytes:
        """Return the path at an address."""
        found = self._string(address, PATH_BYTES)
        if found is None:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        return found

    def strings(self, address: int) -> list[bytes]:
        """Return the strings of an array of pointers that ends with a null pointer; none for no array.

        Both arrays of a call share one bound, as they do in the kernel.
        """
        found: list[bytes] = []
        if not address:
            return found
        pointers = self._pointers(address)
        self._look_ahead(pointers)
        for pointer in pointers:
            string = self._string(pointer, STRING_BYTES)
            if string is None:
                raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
            self._spend(len(string) + 1)
            found.append(string)
        self._window = b""  # may be many times what the strings take, and its caller be held for long
        return found

    def _look_ahead(self, pointers: list[int]) -> None:
        """Read strings that lie close together at once; what cannot be had that way is read one by one."""
        if len(pointers) < 2:
            return
        lowest = min(pointers)
        size = max(pointers) - lowest + _PIECE
        if size <= max(_TOGETHER_BYTES, _TOGETHER_EACH * len(pointers)):
            try:
                self._window, self._base = self._read(lowest, size), lowest
            except OSError:
                pass

    def _pointers(self, address: int) -> list[int]:
        found: list[int] = []
        count = _FIRST_POINTERS
        while True:
            data = self._read(address, count * _POINTER_BYTES)
            more = struct.unpack_from(f"={len(data) // _POINTER_BYTES}Q", data)
            if not more:
                raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
            if 0 in more:
                found += more[: more.index(0)]
                return found
            found += more
            if len(found) > MOST_STRINGS:
                raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
            self._spend(len(more) * _POINTER_BYTES)
            address += len(more) * _POINTER_BYTES
            count = min(count * 4, _MOST_POINTERS)

    def _string(self, address: int, limit: int) -> bytes | None:
        """Return the string at an address without its NUL; None if it is longer than the limit."""
        start = address - self._base
        if 0 <= start < len(self._window):
            end = self._window.find(b"\0", start)
            if end >= 0:
                return self._window[start:end] if end - start < limit else None
        size = _PIECE
        while True:
            self._window, self._base = self._read(address, size), address
            end = self._window.find(b"\0")
            if end >= 0:
                return self._window[:end] if end < limit else None
            if len(self._window) >= limit:
                return None
            if len(self._window) < size:
                raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
            size *= 4

    def _read(self, address: int, size: int) -> bytes:
        if not 0 < address < _HIGHEST:
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
        try:
            data = os.pread(self._descriptor, size, address)
        except OSError:
            data = b""
        if not data:
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
        return data

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
