"""The shell's side of supervision: what a process does so that the supervisor hears of every exec below it.

This process becomes the shell or bubblewrap, or it is the sandbox init, which starts the shell and executes
nothing itself.
"""

from __future__ import annotations

import _socket
import os
import struct

from execserver.sandbox.kernel import limits
from execserver.zygote.supervision.trap import notify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.kernel.syscalls import Kernel

_DESCRIPTOR = struct.Struct("=i")


def hand_over(kernel: Kernel, channel: int) -> None:
    """Put this process under the filter and send the listener through the channel, which is closed.

    Raises OSError.
    """
    # From here on an exec of this process waits until the supervisor, which gets the listener now, answers.
    listener = notify.install(kernel)
    # With family, type and protocol given, Python does not ask the kernel for them: a sandbox's filter
    # refuses getsockopt and getsockname.  It refuses `send`, which is `sendto`, as well.
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, channel)
    try:
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, _DESCRIPTOR.pack(listener))]
        limits.send(sock, b"L", rights)
    finally:
        sock.close()
        # Whoever had it inside could answer the calls that it is there to hold.
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
