"""Entering the network of a sandbox that another program is making, as the owner of its namespaces.

Bubblewrap makes a network of its own for a sandbox and knows nothing of proxies.  A process of ours that
enters it can listen there.  The kernel allows that where bubblewrap needed no rights of others: the network
belongs to a user namespace whose owner is this user.  With a set-user-id bit it belongs to root.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.kernel.syscalls import Kernel

_GET_OWNER = 0xB701  # NS_GET_USERNS
_NEW_USER = 0x10000000
_NEW_NETWORK = 0x40000000
_SIOCGIFFLAGS = 0x8913
_IFF_UP = 1
_IFREQ = struct.Struct("16sH22x")
_PATIENCE_S = 5.0
_PAUSE_S = 0.0005


def join_network(kernel: Kernel, pid: int) -> None:
    """Enter the network of a process, once its loopback is up; this process has one thread.

    Raises OSError.
    """
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        owner = fcntl.ioctl(network, _GET_OWNER)
        try:
            kernel.call("setns", network, _NEW_NETWORK)
        except OSError as error:
            if error.errno != errno.EPERM:
                raise
            # An ordinary user has rights over the network only in the namespace that owns it.
            kernel.call("setns", owner, _NEW_USER)
            kernel.call("setns", network, _NEW_NETWORK)
        finally:
            os.close(owner)
    finally:
        os.close(network)
    _await_loopback()


def _await_loopback() -> None:
    """Wait until whoever makes the network has brought up its loopback.

    Not done here: bubblewrap gives up when the loopback has its address already.
    """
    end = time.monotonic() + _PATIENCE_S
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
    try:
        while (
            not _IFREQ.unpack(fcntl.ioctl(sock.fileno(), _SIOCGIFFLAGS, _IFREQ.pack(b"lo", 0)))[1] & _IFF_UP
        ):
            if time.monotonic() > end:
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            time.sleep(_PAUSE_S)
    finally:
        sock.close()
