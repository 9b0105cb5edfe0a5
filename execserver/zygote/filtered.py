"""A child of the zygote that is under the filter of sandboxed commands and forks sandboxes in its place.

To install a filter takes 0.4 to 0.9 ms, most of it for memory that the kernel makes executable; to inherit
one takes nothing.  So for each of two filters there is a process that has it, does nothing but this, and ends
when it was idle for a while.  What it forks are children of the zygote like any other, in every respect.  It
runs our code only, and holds no descriptor but its socket.
"""

from __future__ import annotations

import _socket
import errno
import gc
import os
import select
import struct

from execserver.sandbox import privileges, seccomp
from execserver.sandbox.namespaces import Identity, flags_for, fork_into
from execserver.sandbox.plan import FILTER_OPEN, FILTER_RESTRICTED, ROOT_READ_ONLY, ViewPlan
from execserver.sandbox.plan_record import decode_plan, encode_plan
from execserver.zygote.channel import receive_record, send_record
from execserver.zygote.init import Setup, run_command
from execserver.zygote.known_plans import KnownPlans
from execserver.zygote.records import SpawnRequest, decode, encode
from execserver.zygote.restricted import command_of, milliseconds_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from execserver.sandbox.plan import Mount
    from execserver.sandbox.syscalls import Kernel
    from execserver.zygote.libc import Libc

NAME = b"execserver-view"  # what it, and who stands first in a view, are called in lists of processes
_IDLE_MS = 30_000
_PR_SET_NAME = 15
_SOCKET = 3
_SIGKILL = 9
_HEAD = struct.Struct("<8xQ")  # where records have their id: the length of the request, the mounts follow
_ANSWER = struct.Struct("<ii")  # pid, errno
_READY = b"R"


# Under the filter of a managed proxy a command's first process could not reach the bridge.
INHERITED = (FILTER_RESTRICTED, FILTER_OPEN)


class FilteredParent:
    """The zygote's side.  The process is started at the first need, and again after it has ended."""

    def __init__(self, kernel: Kernel, libc: Libc, syscall_filter: str = FILTER_RESTRICTED) -> None:
        self._kernel = kernel
        self._filter = syscall_filter
        self._libc = libc
        self._plans = KnownPlans(kernel, filtered=True)
        self._socket: _socket.socket | None = None
        self._pid = 0

    def fork(
        self, request: SpawnRequest, descriptors: Sequence[int], extra: Sequence[Mount], report: int
    ) -> int:
        """Fork the first process of a request's sandbox; return its pid.

        It reports to `report`.  Raises OSError as a fork does, ETIMEDOUT past the request's deadline; nothing
        runs then, or nothing that goes on without its report.
        """
        record = encode(request)
        data = _HEAD.pack(len(record)) + record + encode_plan(ViewPlan(ROOT_READ_ONLY, tuple(extra)))
        answer = b""
        while len(answer) != _ANSWER.size:
            answer = self._ask(data, [report, *descriptors], milliseconds_until(request.deadline_ns))
            if len(answer) != _ANSWER.size and not self._ended_idle():
                raise OSError(errno.ECHILD, os.strerror(errno.ECHILD))
        pid, error = _ANSWER.unpack(answer)
        if error:
            raise OSError(error, os.strerror(error))
        return int(pid)

    def start(self) -> bool:
        """Start the process unless it runs; return whether there is one now."""
        if self._socket is not None:
            return True
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            try:
                privileges.die_with_parent(self._kernel)
                if os.getppid() == parent:
                    self._become(theirs)
            finally:
                os._exit(1)
        theirs.close()
        if ours.recv(1) != _READY:
            ours.close()
            return False
        self._socket, self._pid = ours, pid
        return True

    def _ask(self, data: bytes, descriptors: Sequence[int], patience_ms: int | None) -> bytes:
        """Return the answer to a request; nothing if the process has ended instead."""
        if not self.start() or self._socket is None:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        try:
            send_record(self._socket, data, descriptors)
            poll = select.poll()
            poll.register(self._socket.fileno(), select.POLLIN)
            if not poll.poll(patience_ms):
                os.kill(self._pid, _SIGKILL)
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            return self._socket.recv(_ANSWER.size)
        except (BrokenPipeError, ConnectionResetError):
            return b""

    def _ended_idle(self) -> bool:
        """Let go of a process that has ended; return whether it was for want of work, with nothing done."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        try:
            return os.waitpid(self._pid, 0)[1] == 0
        except ChildProcessError:
            return True  # the zygote has reaped it: it ended before it was asked

    # The process itself.

    def _become(self, sock: _socket.socket) -> None:
        os.dup2(sock.detach(), _SOCKET, inheritable=False)
        privileges.close_from(self._kernel, _SOCKET + 1)
        self._kernel.call("prctl", _PR_SET_NAME, NAME)
        # Under the filter nobody joins another one.
        privileges.leave_session_keyring(self._kernel)
        privileges.no_new_privileges(self._kernel)
        seccomp.install(self._kernel, self._filter)
        seccomp.check(self._kernel)
        # With everything named, the object asks nothing that the filter refuses.
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, _SOCKET)
        gc.collect()
        gc.freeze()
        send_record(sock, _READY)
        poll = select.poll()
        poll.register(_SOCKET, select.POLLIN)
        while poll.poll(_IDLE_MS):
            received = receive_record(sock)
            if received is None:
                break
            self._serve(sock, *received)
        os._exit(0)

    def _serve(self, sock: _socket.socket, data: bytes, descriptors: list[int]) -> None:
        (length,) = _HEAD.unpack_from(data)
        request = decode(data[_HEAD.size : _HEAD.size + length])
        assert isinstance(request, SpawnRequest)
        extra = decode_plan(data[_HEAD.size + length :]).mounts
        plan, prepared = self._plans.plan(request.plan), self._plans.view(request.plan)
        report, *others = descriptors
        command = command_of(request, others)
        command.make_ready()
        identity = Identity()
        pid, mapped, error = 0, False, 0
        try:
            pid, mapped = fork_into(self._kernel, flags_for(plan), sibling=True)
        except OSError as failure:
            error = failure.errno or errno.EIO
        if pid == 0 and not error:
            gc.disable()
            own = identity if mapped else None
            run_command(
                Setup(self._kernel, plan, own, report, extra, prepared, filtered=True), self._libc, command
            )
        for descriptor in descriptors:
            os.close(descriptor)
        send_record(sock, _ANSWER.pack(pid, error))
