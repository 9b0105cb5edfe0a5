"""What a program outside inherits of the process that asked for it, besides files: signals, priority, limits.

It has never more than that process, and never more than the supervisor.  Everything here is set by a process
for itself, before it executes the program, so that the program never runs without it.
"""

from __future__ import annotations

import functools
import os
import resource
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.zygote.supervision.trap.process_status import Status

# Its size, policy, flags, niceness, priority; the rest is for deadlines.
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
_RESET_ON_FORK = 1
_LAST_POLICY = 5  # idle; a deadline is inherited by nobody, and what comes behind has a program of its own
_OF_A_PROCESS = 1  # what `ioprio_get` is asked for
_MOST_BYTES = 64
_OWN_OOM_SCORE = "/proc/self/oom_score_adj"


class Inherited:
    """Values of one thread that its program keeps.

    `ignored` and `blocked` are masks of signals, bit N-1 for signal N; `cpus` is a mask as the kernel writes
    it; `scheduling` is policy, whether children lose it, and real-time priority; `ioprio` is the number that
    the kernel has for class and level.  `limits` are the hard limits that the process has lowered, with their
    resources.
    """

    __slots__ = ("blocked", "cpus", "ignored", "ioprio", "limits", "nice", "oom", "scheduling", "umask")

    def __init__(self, kernel: Kernel, tid: int, status: Status) -> None:
        """Read them.  Raises OSError."""
        self.ignored, self.blocked, self.umask = status.ignored, status.blocked, status.umask
        self.cpus = status.cpus
        self.nice, self.scheduling = _scheduling(kernel, tid)
        self.ioprio = _ioprio(kernel, tid)
        self.oom = _oom_score(tid)
        self.limits: tuple[tuple[int, int], ...] = ()

    @property
    def is_inheritable(self) -> bool:
        """Return whether a child of this process can have all of it.  Raises OSError."""
        if self.scheduling[0] > _LAST_POLICY:
            return False
        return _can_be_raised(os.getpid()) or self.oom <= _oom_score(os.getpid())

    def is_scheduled_apart(self, own: Inherited) -> bool:
        """Return whether a thread of a process that has `own` must set something for itself."""
        ours = own.cpus, own.scheduling, own.ioprio
        return (self.cpus, self.scheduling, self.ioprio) != ours or self.nice > own.nice

    def needs_process(self, own: Inherited) -> bool:
        """Return whether it takes another process than one that has `own`."""
        return self.oom > own.oom or bool(self.limits)

    def adopt(self, kernel: Kernel, own: Inherited) -> None:
        """Set what differs from `own`, except for signals and umask, in this thread.  Raises OSError."""
        for number, most in self.limits:
            soft, hard = resource.getrlimit(number)
            hard = _lower(hard, most)
            resource.setrlimit(number, (_lower(soft, hard), hard))
        if self.oom > own.oom:
            with open(_OWN_OOM_SCORE, "wb", buffering=0) as file:
                file.write(b"%d" % self.oom)
        if self.cpus != own.cpus:
            os.sched_setaffinity(0, _numbers(self.cpus))
        if self.ioprio != own.ioprio:
            kernel.call("ioprio_set", _OF_A_PROCESS, 0, self.ioprio)
        # Last: what the lowest priority has to do may take long.
        if self.scheduling != own.scheduling or self.nice > own.nice:
            policy, resets, priority = self.scheduling
            flags, nice = _RESET_ON_FORK if resets else 0, max(self.nice, own.nice)
            packed = _ATTRIBUTES.pack(_ATTRIBUTES.size, policy, flags, nice, priority, 0, 0, 0)
            kernel.call("sched_setattr", 0, packed, 0)


def _scheduling(kernel: Kernel, tid: int) -> tuple[int, tuple[int, bool, int]]:
    """Return niceness, and policy with what belongs to it."""
    import ctypes

    room = ctypes.create_string_buffer(_ATTRIBUTES.size)
    try:
        kernel.call("sched_getattr", tid, room, _ATTRIBUTES.size, 0)
    except OSError:
        return os.getpriority(os.PRIO_PROCESS, tid), (0, False, 0)  # refused in this container
    _, policy, flags, nice, priority, *_ = _ATTRIBUTES.unpack(room.raw)
    return nice, (policy, bool(flags & _RESET_ON_FORK), priority)


def _ioprio(kernel: Kernel, tid: int) -> int:
    try:
        return kernel.call("ioprio_get", _OF_A_PROCESS, tid)
    except OSError:
        return 0  # a kernel without, or a container that refuses the call


@functools.lru_cache(1)
def _can_be_raised(own: int) -> bool:
    """Return whether this process, of that number, can raise its own OOM score: always or never."""
    # Of a process that is not dumpable only root can open the file.
    return os.access(_OWN_OOM_SCORE, os.W_OK)


def _oom_score(tid: int) -> int:
    opened = os.open(b"/proc/%d/oom_score_adj" % tid, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(opened, _MOST_BYTES))
    finally:
        os.close(opened)


def _numbers(cpus: bytes) -> list[int]:
    mask = int(cpus.replace(b",", b""), 16)
    return [number for number in range(mask.bit_length()) if mask >> number & 1]


def _lower(one: int, other: int) -> int:
    """Return the lower one of two limits; RLIM_INFINITY is negative here."""
    if one == resource.RLIM_INFINITY or other == resource.RLIM_INFINITY:
        return max(one, other)
    return min(one, other)
