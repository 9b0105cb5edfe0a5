"""Seccomp user notification: the filter and the listener's side; what differs per CPU is in one table.

The filter holds `execve` and `execveat` until the listener has answered, and lets all other calls pass, so it
adds to whatever filter a plan has.  Programs of another architecture of the same CPU may run but not start
others: their arguments have another layout in memory.  x32, whose numbers mean something else, is killed, as
by our other filters.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct

from execserver.sandbox.kernel.seccomp import (
    ALLOW,
    JUMP_EQUAL,
    JUMP_GREATER_EQUAL,
    KILL,
    LOAD,
    REFUSE,
    RETURN,
)
from execserver.sandbox.kernel.seccomp_table import ARCHITECTURES, NO_CALL, X32_BIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.kernel.syscalls import Kernel

# Per machine: execve, execveat; the other architecture of the CPU, and the same two calls there.
_CALLS = {
    "x86_64": (59, 322, 0x40000003, 11, 358),
    "aarch64": (221, 281, 0x40000028, 11, 387),
}
_NOTIFY = 0x7FC00000  # SECCOMP_RET_USER_NOTIF
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_INSTRUCTION = struct.Struct("<HBBI")

_SET_MODE_FILTER = 1
_NEW_LISTENER = 8
_HOLDING = _NEW_LISTENER | 0x20  # since Linux 5.19; without it a signal makes the caller ask again
_OURS = "notify"  # the key of this filter in `Kernel.programs`
WAIT_KILLABLE = "wait killable"  # the entry in `Kernel.without` of a kernel that lacks the flag

_RECEIVE = 0xC0502100
_SEND = 0xC0182101
_IS_VALID = 0x40082102
_SET_FLAGS = 0x40082104
_ADD = 0x40182103
_SYNC_WAKE_UP = 1  # the thread that is answered runs next, on the same CPU
_CONTINUE = 1
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")  # id, pid, flags; number, architecture, place, arguments
_PATH_OF = struct.Struct("=QI4xi12xQ")  # of the same: id, pid, number and first argument
_RESPONSE = struct.Struct("=QqiI")  # id, value, error, flags
_ID = struct.Struct("=Q")
_ADDED = struct.Struct("=QIIII")  # id, flags, descriptor here, number there, flags there
_SET_NUMBER = 1  # of these flags; else the kernel chooses it


class Notification:
    """A thread that waits in its execve or execveat.

    `tid` is its number in this pid namespace, `arguments` are the six of the call.
    """

    __slots__ = ("arguments", "at_folder", "id", "tid")

    def __init__(self, identity: int, tid: int, at_folder: bool, arguments: tuple[int, ...]) -> None:
        self.id = identity
        self.tid = tid
        self.at_folder = at_folder  # it is execveat
        self.arguments = arguments


class Listener:
    """The listener; owns its descriptor, which is readable when there is a notification."""

    def __init__(self, descriptor: int, kernel: Kernel) -> None:
        self.descriptor = descriptor
        self.holds = _can_hold(kernel)  # only what kills a thread ends the wait of one that was received
        self._execveat = _CALLS[kernel.machine][1]
        self._empty = bytes(_NOTIFICATION.size)  # the kernel insists on a buffer of zeros
        try:
            fcntl.ioctl(descriptor, _SET_FLAGS, _SYNC_WAKE_UP)
        except OSError:
            pass  # before Linux 6.6; answers take a little longer there

    def receive(self) -> Notification | None:
        """Take one notification; None if its thread has been killed meanwhile.

        Blocks unless the descriptor is readable.  Raises OSError.
        """
        data = self.receive_packed()
        return None if data is None else self.unpacked(data)

    def receive_packed(self) -> bytearray | None:
        """Take one notification as `receive` does, for `path_of` and `unpacked`."""
        data = bytearray(self._empty)
        try:
            fcntl.ioctl(self.descriptor, _RECEIVE, data)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                return None
            raise
        return data

    def path_of(self, data: bytearray) -> tuple[int, int, int]:
        """Return id, thread and the address of the path of an execve; the address 0 for an execveat."""
        identity, tid, number, address = _PATH_OF.unpack_from(data)
        return identity, tid, 0 if number == self._execveat else address

    def unpacked(self, data: bytearray) -> Notification:
        """Return the whole notification."""
        identity, tid, _, number, _, _, *arguments = _NOTIFICATION.unpack(data)
        return Notification(identity, tid, number == self._execveat, tuple(arguments))

    def is_over(self) -> bool:
        """Return whether no process is under the filter any more."""
        # The kernel reports a hangup when the last task with the filter is gone.
        poll = select.poll()
        poll.register(self.descriptor, 0)
        return any(events & select.POLLHUP for _, events in poll.poll(0))

    def is_waiting(self, identity: int) -> bool:
        """Return whether the thread still waits in the call.

        If so, all that was read under its number before was its own: the number cannot have been reused.
        """
        try:
            fcntl.ioctl(self.descriptor, _IS_VALID, _ID.pack(identity))
        except OSError:
            return False
        return True

    def add(self, identity: int, descriptor: int, number: int) -> None:
        """Give the thread a copy of a descriptor as `number`, in place of its own there; its exec closes it.

        Raises OSError: the thread is gone, may not use the number, or the kernel is older than 5.9.
        """
        packed = _ADDED.pack(identity, _SET_NUMBER, descriptor, number, os.O_CLOEXEC)
        fcntl.ioctl(self.descriptor, _ADD, packed)

    def carry_on(self, identity: int) -> None:
        """Let the kernel do the call; a thread that is gone is no error."""
        # The kernel reads the arguments once more, and they may have changed since.  That is no way out of
        # the sandbox: the program runs inside.
        self._respond(identity, 0, _CONTINUE)

    def fail(self, identity: int, number: int) -> None:
        """Answer the call with an errno; a thread that is gone is no error."""
        self._respond(identity, -number, 0)

    def close(self) -> None:
        """Close the listener: threads that wait get ENOSYS, and so does every later call."""
        os.close(self.descriptor)

    def _respond(self, identity: int, error: int, flags: int) -> None:
        try:
            fcntl.ioctl(self.descriptor, _SEND, _RESPONSE.pack(identity, 0, error, flags))
        except OSError as failed:
            # The thread is gone, or a signal has ended its wait.
            if failed.errno not in (errno.ENOENT, errno.EINPROGRESS):
                raise


def program(machine: str) -> bytes:
    """Return the filter program; an unknown machine raises KeyError."""
    # The architecture comes first: the same number is another call in another one.
    execve, execveat, other, other_execve, other_execveat = _CALLS[machine]
    same: list[tuple[int, int, int, int]] = [(LOAD, 0, 0, _NUMBER_AT)]
    if machine == "x86_64":
        # NO_CALL is above X32_BIT, but no call: what a tracer puts in to skip one.
        same += [(JUMP_EQUAL, 2, 0, NO_CALL), (JUMP_GREATER_EQUAL, 0, 1, X32_BIT), (RETURN, 0, 0, KILL)]
    same += _when((execve, execveat), _NOTIFY)
    foreign = [(LOAD, 0, 0, _NUMBER_AT), *_when((other_execve, other_execveat), REFUSE)]
    code = [
        (LOAD, 0, 0, _ARCHITECTURE_AT),
        (JUMP_EQUAL, 0, len(same), ARCHITECTURES[machine]),
        *same,
        (JUMP_EQUAL, 1, 0, other),
        (RETURN, 0, 0, KILL),
        *foreign,
    ]
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in code)


def prepare(kernel: Kernel) -> None:
    """Make the filter program before the forks that use it; none for a CPU without numbers here."""
    if kernel.machine in _CALLS:
        kernel.programs[_OURS] = program(kernel.machine)


def listener_filter(kernel: Kernel) -> tuple[bytes, int] | None:
    """Return the filter program and the flags for its listener; None for a CPU without numbers here."""
    if _OURS not in kernel.programs:
        prepare(kernel)
    code = kernel.programs.get(_OURS)
    return None if code is None else (code, _HOLDING if _can_hold(kernel) else _NEW_LISTENER)


def install(kernel: Kernel) -> int:
    """Put this thread and all it starts under the filter; return the listener, owned by the caller.

    Needs no_new_privs.  Raises OSError, EBUSY if there is a listener already: the kernel allows one.
    """
    import ctypes

    found = listener_filter(kernel)
    if found is None:
        raise OSError(errno.ENOSYS, "no system call numbers for this CPU", kernel.machine)
    code, flags = found
    instructions = ctypes.create_string_buffer(code, len(code))
    address = ctypes.addressof(instructions)
    head = ctypes.create_string_buffer(struct.pack("@HP", len(code) // _INSTRUCTION.size, address))
    return kernel.call("seccomp", _SET_MODE_FILTER, flags, head)


def _can_hold(kernel: Kernel) -> bool:
    """Return whether the kernel can keep a thread in its call once that was received, whatever it is sent."""
    if WAIT_KILLABLE in kernel.without:
        return False
    try:
        # Of flags that it knows the kernel goes on to the program, which is not there.
        kernel.call("seccomp", _SET_MODE_FILTER, _HOLDING, None)
    except OSError as error:
        return error.errno == errno.EFAULT
    return False


def _when(numbers: tuple[int, int], verdict: int) -> list[tuple[int, int, int, int]]:
    """Return the end of a program: one verdict for two calls, and ALLOW for all others."""
    first, second = numbers
    return [
        (JUMP_EQUAL, 1, 0, first),
        (JUMP_EQUAL, 0, 1, second),
        (RETURN, 0, 0, verdict),
        (RETURN, 0, 0, ALLOW),
    ]
