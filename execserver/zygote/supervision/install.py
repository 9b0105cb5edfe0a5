"""The shell's side of supervision: what a process does so that the supervisor hears of every exec below it.

It is the process that becomes the shell, or the first one of a sandbox, which starts the shell and executes
nothing itself.
"""

from __future__ import annotations

import _socket
import os
import struct

from execserver.sandbox import limits
from execserver.zygote.supervision import notify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.syscalls import Kernel

_DESCRIPTOR = struct.Struct("=i")


def hand_over(kernel: Kernel, channel: int) -> None:
    """Put this process under the filter and send the listener through the channel, which is closed.

    Raises OSError.
    """
    listener = notify.install(kernel)
    # With everything named, the object asks nothing that a filter refuses; `send` would be refused.
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, channel)
    try:
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, _DESCRIPTOR.pack(listener))]
        limits.send(sock, b"L", rights)
    finally:
        sock.close()
        os.close(listener)


def receive_listener(channel: _socket.socket) -> int | None:
    """Return the listener that came through the channel, owned by the caller; None if none did.

    The channel does not block.
    """
    try:
        _, ancillary, _, _ = channel.recvmsg(1, _socket.CMSG_SPACE(4), _socket.MSG_CMSG_CLOEXEC)
    except BlockingIOError:
        return None
    for level, kind, content in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            return int(_DESCRIPTOR.unpack_from(content)[0])
    return None
