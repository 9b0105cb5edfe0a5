"""Entry point of a file worker inside a sandbox root that bubblewrap made.

The arguments are two descriptors: the worker's socket, and one to read its plan from.  Descriptor 2 is the
report of its start: RUNNING once it is confined.
"""

from __future__ import annotations

import os
import sys

_SOCKET_AND_PLAN = 2


def main() -> int:
    """Serve file operations until the socket ends."""
    import _socket

    from execserver.sandbox.kernel import landlock, privileges
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.plan_record import decode_plan
    from execserver.zygote.confine.child import RUNNING
    from execserver.zygote.worker import serve

    number, record = (int(text) for text in sys.argv[-_SOCKET_AND_PLAN:])
    plan = decode_plan(_content(record))
    os.set_inheritable(number, False)
    kernel = Kernel()
    # The exec has made it dumpable again: other processes of the user could trace it.
    privileges.set_dumpable(kernel, False)
    version = landlock.abi(kernel)
    if version >= landlock.LEAST_ABI_IN_ROOT:
        landlock.restrict_files(kernel, version, plan)
    os.write(2, RUNNING)
    # The null device in place of the report, which has served: nothing printed later may get onto it.
    os.dup2(1, 2)
    # With family, type and protocol given, Python does not ask the kernel for them: the filter refuses
    # getsockopt and getsockname.
    serve(_socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, number), plan)
    return 0


def _content(descriptor: int) -> bytes:
    pieces = []
    while piece := os.read(descriptor, 1 << 20):
        pieces.append(piece)
    os.close(descriptor)
    return b"".join(pieces)
