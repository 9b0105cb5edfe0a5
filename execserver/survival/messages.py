"""The messages between a server and its keeper, over a pair of SOCK_SEQPACKET sockets.

A descriptor is named by a key, a number that is given once.  To the keeper: HOLD with keys and descriptors,
ZYGOTE with a pid, its key and the descriptor of its socket, DROP with keys, DROP_BELOW with a key, READY, and
TELL with a text for the service manager.  To a server that starts: HOLD as often as needed, then BEGIN with
the reason why the server before it ended, empty for the first one.  Standard library only.
"""

from __future__ import annotations

import _socket
import errno
import os
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NamedTuple
else:
    from execserver.tuples import NamedTuple

HOLD, ZYGOTE, DROP, DROP_BELOW, READY, TELL, BEGIN = b"HZDBRTG"
MOST_DESCRIPTORS = 32  # in one message
_MOST_BYTES = 8192
_WAIT_S = 5  # the other end only takes; one that does not is taken for dead
_PAUSE_S = 0.001
_CMSG_CLOEXEC = 0x40000000


class BadMessage(Exception):
    """The other end has sent what is no message, or descriptors found no room here."""


class Message(NamedTuple):
    """A message; whoever has received it owns its descriptors."""

    kind: int
    numbers: list[int]
    text: bytes
    fds: list[int]


def line() -> tuple[_socket.socket, _socket.socket]:
    """Return both ends of a line, whose sends wait for a limited time.  Raises OSError."""
    ends = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, struct.pack("ll", _WAIT_S, 0))
    return ends


def send(
    sock: _socket.socket, kind: int, numbers: Sequence[int] = (), fds: Sequence[int] = (), text: bytes = b""
) -> None:
    """Send a message, waiting for room.  Raises OSError, also after `_WAIT_S`."""
    body = text if kind in (TELL, BEGIN) else struct.pack(f"<{len(numbers)}Q", *numbers)
    packed = struct.pack(f"{len(fds)}i", *fds)
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)] if fds else []
    until = time.monotonic() + _WAIT_S
    while True:
        try:
            sock.sendmsg([bytes([kind]), body], rights, _socket.MSG_NOSIGNAL)
            return
        except OSError as error:
            # So many descriptors may be under way as a process may have open.
            if error.errno != errno.ETOOMANYREFS or time.monotonic() > until:
                raise
            time.sleep(_PAUSE_S)


def receive(sock: _socket.socket) -> Message | None:
    """Return the next message; None at the end.  Raises BadMessage, OSError."""
    space = _socket.CMSG_SPACE(4 * MOST_DESCRIPTORS)
    try:
        data, ancillary, flags, _ = sock.recvmsg(_MOST_BYTES, space, _CMSG_CLOEXEC)
    except ConnectionResetError:
        return None
    fds: list[int] = []
    for level, kind, content in ancillary:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
            fds += struct.unpack(f"{len(content) // 4}i", content[: len(content) // 4 * 4])
    if not data:
        return None
    numbers: list[int] = []
    if data[0] not in (TELL, BEGIN):
        numbers += struct.unpack_from(f"<{(len(data) - 1) // 8}Q", data, 1)
    if flags & (_socket.MSG_CTRUNC | _socket.MSG_TRUNC) or _expected(data[0], numbers) != len(fds):
        for fd in fds:
            os.close(fd)
        raise BadMessage("descriptors are missing")
    return Message(data[0], numbers, data[1:], fds)


def _expected(kind: int, numbers: list[int]) -> int:
    """Return how many descriptors belong to a message."""
    return len(numbers) if kind == HOLD else int(kind == ZYGOTE and len(numbers) == 2)
