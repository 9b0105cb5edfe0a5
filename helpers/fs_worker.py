"""Entry point of a file worker inside a view that bubblewrap made.

The arguments are two descriptors: the worker's socket, and what reads as its plan.  Descriptor 2 is the
report of its start: RUNNING once it is confined.
"""

from __future__ import annotations

import os
import sys

_SOCKET_AND_PLAN = 2


def main() -> int:
    """Serve file operations until the socket ends."""
    import _socket

    from execserver.sandbox import landlock, privileges
    from execserver.sandbox.plan_record import decode_plan
    from execserver.sandbox.syscalls import Kernel
    from execserver.zygote.init import RUNNING
    from execserver.zygote.worker import serve

    number, record = (int(text) for text in sys.argv[-_SOCKET_AND_PLAN:])
    plan = decode_plan(_content(record))
    os.set_inheritable(number, False)
    kernel = Kernel()
    privileges.set_dumpable(kernel, False)
    version = landlock.abi(kernel)
    if version >= landlock.LEAST_ABI_IN_VIEW:
        landlock.restrict_files(kernel, version, plan)
    os.write(2, RUNNING)
    os.dup2(1, 2)
    # With everything named, the object asks nothing that the filter refuses.
    serve(_socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, number), plan)
    return 0


def _content(descriptor: int) -> bytes:
    pieces = []
    while piece := os.read(descriptor, 1 << 20):
        pieces.append(piece)
    os.close(descriptor)
    return b"".join(pieces)
