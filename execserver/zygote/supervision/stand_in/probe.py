"""The probe of stand-ins: whether a process can become one here, tried with a child of ours."""

from __future__ import annotations

import _socket
import errno
import os
import select
import time

from execserver.sandbox.backends.probe import attempt
from execserver.sandbox.backends.report import Check
from execserver.sandbox.kernel import privileges
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.zygote.supervision.event_loop import EventLoop
from execserver.zygote.supervision.stand_in.stand_in import STANDING, Seized
from execserver.zygote.supervision.stand_in.stand_ins import StandIns, can_stand_in
from execserver.zygote.supervision.trap import install
from execserver.zygote.supervision.trap.callers import Start
from execserver.zygote.supervision.trap.notify import Listener
from execserver.zygote.supervision.trap.process_status import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.zygote.supervision.stand_in.stand_in import StandIn

STAND_INS = "stand-ins"  # the name of the check
_CURE = (
    "see the line `notification`; set vm.memfd_noexec to 0 or 1 where it is 2; use Linux 5.9 or newer on "
    "x86-64 or aarch64. Else parents wait for programs that run outside, and signals do not reach them"
)
_PATH = b"/"  # never executed
_CODE = 43  # an exit status that the child would not have otherwise
_NUMBER = 3  # of a descriptor there; whatever it was is closed by the exec in any case
_LIMIT_S = 2.0
_WALL = 0x40000000


def check_stand_ins(kernel: Kernel | None = None) -> Check:
    """Try whether a process becomes a stand-in for a program outside, and ends as it is told."""
    kernel = kernel or Kernel()
    if not can_stand_in(kernel):
        return Check(STAND_INS, False, "", f"there is no code for this CPU ({kernel.machine})", _CURE)
    failed = attempt(lambda: _try(kernel))
    if failed is None:
        return Check(STAND_INS, True, "programs outside behave as if they ran in place (the shell tool)")
    name = errno.errorcode.get(failed[1], str(failed[1]))
    return Check(
        STAND_INS, False, "", f"a process cannot be made to execute a file in memory ({name})", _CURE
    )


class _Trial(Start):
    """The start of no program: its stand-in is told to go on at once."""

    one: StandIn

    def ready(self) -> None:
        self.one.go(0)
        self.one.become()

    def lost(self, signum: int) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    def interrupted(self) -> None:
        raise OSError(errno.EINTR, os.strerror(errno.EINTR))


def _try(kernel: Kernel) -> None:
    """Raise OSError unless a child becomes a stand-in and exits as told."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        try:
            ours.close()
            privileges.die_with_parent(kernel)
            privileges.no_new_privileges(kernel)
            install.hand_over(kernel, theirs.detach())
            os.execv(_PATH, [b"x"])
        finally:
            os._exit(errno.EIO)
    theirs.close()
    descriptor = install.receive_listener(ours)
    if descriptor is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    listener, stand_ins, trial = Listener(descriptor, kernel), StandIns(kernel, EventLoop()), _Trial()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    notification = listener.receive() if poll.poll(_LIMIT_S * 1000) else None
    if notification is None:
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    status = Status(pid)
    stand_ins.filters = status.filters
    path_end = notification.arguments[0] + len(_PATH)
    one = stand_ins.seize(listener, Seized(notification, status, path_end, _NUMBER), trial)
    if one is None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))
    trial.one = one
    if listener.holds:
        one.halt()
    _follow(pid, one, stand_ins, listener, poll)


def _follow(pid: int, one: StandIn, stand_ins: StandIns, listener: Listener, poll: select.poll) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        if poll.poll(1):
            notification = listener.receive()
            if notification is not None:
                stand_ins.asked(notification)
        ended, status = os.waitpid(pid, os.WNOHANG | _WALL)
        if ended and not os.WIFSTOPPED(status):
            if os.waitstatus_to_exitcode(status) == _CODE:
                return
            break
        if ended:
            stand_ins.changed(pid, status)
            if one.step == STANDING:
                one.finish(_CODE << 8)
    raise OSError(errno.EIO, os.strerror(errno.EIO))
