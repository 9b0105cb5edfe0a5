"""The arguments of an intercepted execve, read from the thread's memory within the kernel's own limits.

Reads go through /proc/PID/mem.  It answers with an error where the thread's own access would wait for a user
of userfaultfd, so nobody can delay the reader that way.  Whoever shares the memory may change it at any time:
what is read here is a copy, and the only thing that is acted on outside.
"""

from __future__ import annotations

import errno
import os
import struct

PATH_BYTES = 4096  # PATH_MAX
STRING_BYTES = 32 * 4096  # MAX_ARG_STRLEN
TOTAL_BYTES = 6 * 1024 * 1024  # the kernel never takes more arguments and environment
# While strings are read, nobody else is served: 2 us for each, 6 more where a read finds only that one.  The
# kernel's usual limit of 2 MiB, pointers included, allows as many names of seven letters.
MOST_STRINGS = 128 * 1024

_PIECE = 1024  # longer than most strings, and mostly in one page
_POINTER_BYTES = 8
_FEW_POINTERS = 32
MANY_POINTERS = 128  # more than most environments have
_MOST_POINTERS = 4096  # in one read
_TOGETHER_BYTES = 64 * 1024  # strings within so many bytes are read at once,
_TOGETHER_EACH = 256  # and many strings that take no more than this on average
_SHORT_PATH_BYTES = 256
_HIGHEST = (1 << 63) - TOTAL_BYTES


class Memory:
    """The memory of a process; owns a descriptor.  Reads raise OSError EFAULT, or E2BIG above the limits."""

    def __init__(self, tid: int) -> None:
        self._descriptor = os.open(b"/proc/%d/mem" % tid, os.O_RDONLY | os.O_CLOEXEC)
        self._left = TOTAL_BYTES
        self._base = 0
        self._window = b""

    def close(self) -> None:
        """Close it, once or more often."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def short_path(self, address: int) -> bytes:
        """Return the path at an address; none if it is long, or cannot be read."""
        try:
            path, end, _ = self._read(address, _SHORT_PATH_BYTES).partition(b"\0")
        except OSError:
            return b""
        return path if end else b""

    def path(self, address: int) -> bytes:
        """Return the path at an address; raises OSError ENAMETOOLONG, too."""
        found = self._string(address, PATH_BYTES)
        if found is None:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        return found

    def strings(self, address: int, expected: int = _FEW_POINTERS) -> tuple[bytes, ...]:
        """Return the strings of an array of pointers that ends with a null pointer; none for address 0.

        `expected` many pointers are read at first.  Both arrays of a call share one limit, as they do in the
        kernel.
        """
        if not address:
            return ()
        pointers = self._pointers(address, expected)
        self._look_ahead(pointers)
        together = self._together(pointers)
        if together is not None:
            return together
        found: list[bytes] = []
        window, base = self._window, self._base
        for pointer in pointers:
            # Most strings have been read by now: this is done for each, and nobody else is served meanwhile.
            start = pointer - base
            end = window.find(b"\0", start) if start >= 0 else -1
            string = window[start:end] if end >= 0 else self._string(pointer, STRING_BYTES)
            if string is None or len(string) >= STRING_BYTES:
                raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
            self._left -= len(string) + 1
            if self._left < 0:
                raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
            found.append(string)
            if end < 0:
                window, base = self._window, self._base
        # It may be many times as large as the strings, and the caller may be held for long: 128 of them once
        # took 3 GiB of a supervisor.
        self._window = b""
        return tuple(found)

    def _together(self, pointers: list[int]) -> tuple[bytes, ...] | None:
        """Return strings that were all read ahead, in a piece that can hold no longer ones than may be."""
        window, base = self._window, self._base
        # Many pointers to one long string would be gigabytes before anybody counts them.
        most = min(_TOGETHER_BYTES, TOTAL_BYTES // max(1, len(pointers)))
        if len(window) > most or not pointers or min(pointers) < base:
            return None
        if window.find(b"\0", max(pointers) - base) < 0:
            return None
        # With a NUL behind the last one, each has its own.
        found = tuple([window[(at := pointer - base) : window.find(b"\0", at)] for pointer in pointers])
        self._window = b""
        self._spend(sum(map(len, found)) + len(found))
        return found

    def _look_ahead(self, pointers: list[int]) -> None:
        """Read strings that lie close together at once; what cannot be read so is read one by one."""
        if len(pointers) < 2:
            return
        lowest = min(pointers)
        size = max(pointers) - lowest + _PIECE
        if size <= max(_TOGETHER_BYTES, _TOGETHER_EACH * len(pointers)):
            try:
                self._window, self._base = self._read(lowest, size), lowest
            except OSError:
                pass  # the gaps between them may not be readable

    def _pointers(self, address: int, count: int) -> list[int]:
        found: list[int] = []
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
