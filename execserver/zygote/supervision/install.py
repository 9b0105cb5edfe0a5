"""The shell's side of supervision: what its process does right before its first exec.

The process is a fork of one of ours.  It installs the filter and hands the listener to the supervisor, or
lets the shell have the socket for wrappers, and becomes the shell; nothing else of ours is left in it.  What
cannot be watched is not started.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the plain calls, without enumerations
import _socket
import os
import struct

from execserver.sandbox.view import ViewFailed
from execserver.zygote.supervision import notify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.syscalls import Kernel
    from execserver.zygote.libc import Libc

_NOT_WATCHED = b"W"
_NOT_EXECUTED = b"E"
_ERRNO = struct.Struct("=i")
_REASON_BYTES = 512
# Signals whose disposition the interpreter changes at its start.
_CHANGED_SIGNALS = (_signal.SIGINT, _signal.SIGPIPE, _signal.SIGXFSZ)


def hand_over(kernel: Kernel, channel: int) -> None:
    """Put this process under the filter and send the listener through the channel, which is closed.

    Raises OSError.
    """
    listener = notify.install(kernel)
    # With everything named, the object asks nothing that a filter refuses; `send` would be refused.
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, channel)
    try:
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("=i", listener))]
        sock.sendmsg([b"L"], rights)
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
            return int(_ERRNO.unpack_from(content)[0])
    return None


def start_watched(
    libc: Libc, watch: Callable[[], None], path: bytes, argv: Sequence[bytes], env: Sequence[bytes]
) -> int:
    """Start a program in this process's session and group, with its stdio; return its pid.

    Its process has called `watch` before, which may raise OSError: then nothing is started, and ViewFailed
    raised.  Raises OSError with the errno of the exec.
    """
    told, tells = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _become(libc, watch, tells, path, argv, env)
    os.close(tells)
    said = os.read(told, _REASON_BYTES)
    os.close(told)
    if not said:
        return pid
    os.waitpid(pid, 0)
    if said[:1] == _NOT_WATCHED:
        raise ViewFailed(os.fsdecode(said[1:]))
    number = _ERRNO.unpack_from(said, 1)[0]
    raise OSError(number, os.strerror(number))


def _become(
    libc: Libc,
    watch: Callable[[], None],
    tells: int,
    path: bytes,
    argv: Sequence[bytes],
    env: Sequence[bytes],
) -> None:
    """Become the program; never returns."""
    failure = _NOT_WATCHED
    try:
        for number in _CHANGED_SIGNALS:
            _signal.signal(number, _signal.SIG_DFL)
        watch()
        failure = _NOT_EXECUTED
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        libc.execute(path, argv, env)
    except OSError as error:
        if failure == _NOT_EXECUTED:
            os.write(tells, failure + _ERRNO.pack(error.errno or 0))
        else:
            os.write(tells, failure + os.fsencode(f"cannot watch the shell: {error.strerror}"))
    finally:
        os._exit(1)
