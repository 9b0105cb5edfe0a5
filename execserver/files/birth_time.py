"""When a file was made: Python's own `stat` does not report it on Linux."""

from __future__ import annotations

import struct

_SYMLINK_NOFOLLOW = 0x100
_WANTED = 0x800  # STATX_BTIME
_BUFFER_BYTES = 256
_MASK = struct.Struct("=I")
_TIME = struct.Struct("=qI")
_BIRTH_AT = 80


def birth_time_ms(dir_fd: int, name: bytes) -> int:
    """Return the time of birth of a name in a directory, in ms; 0 if unknown.  Symlinks are not followed."""
    import ctypes

    call = getattr(ctypes.CDLL(None), "statx", None)
    buffer = ctypes.create_string_buffer(_BUFFER_BYTES)
    if call is None or call(dir_fd, name, _SYMLINK_NOFOLLOW, _WANTED, buffer) != 0:
        return 0
    (mask,) = _MASK.unpack_from(buffer)
    if not mask & _WANTED:
        return 0
    seconds, nanoseconds = _TIME.unpack_from(buffer, _BIRTH_AT)
    return int(max(seconds * 1000 + nanoseconds // 1_000_000, 0))
