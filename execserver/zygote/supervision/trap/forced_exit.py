"""Making an intercepted process exit with a given code, without writing to its memory.

The supervisor seizes the thread and answers its call with an error.  When the thread stops on its way back,
the supervisor sets its registers so that the next thing it does is `exit_group`.  That works for the child of
a vfork, too, whose memory is its parent's.  Where it is refused (another process traces the thread, or the
kernel or container lets us not trace), the process is killed instead, so that nothing continues that should
have ended.
"""

from __future__ import annotations

import errno
import os
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.zygote.supervision.trap.notify import Listener

_GET_REGISTERS = 0x4204
_SET_REGISTERS = 0x4205
_SEIZE = 0x4206
_INTERRUPT = 0x4207
_DETACH = 17
_NT_PRSTATUS = 1
_NT_ARM_SYSTEM_CALL = 0x404
_WALL = 0x40000000  # to wait for traced threads that are no children, too
_SIGKILL = 9
_STOP_S = 2.0  # for a woken thread to reach user space; it takes microseconds
_ANSWER = errno.EPERM  # never seen: the thread does not come back from the call

# Per machine: bytes of the registers; offsets of instruction pointer, call number, first argument, and of the
# number to restart with (-1: it is in a register set of its own); length of the instruction that makes a
# call; the number of exit_group.
_REGISTERS = {
    "x86_64": (216, 16 * 8, 10 * 8, 14 * 8, 15 * 8, 2, 231),
    "aarch64": (272, 32 * 8, 8 * 8, 0, -1, 4, 94),
}
_WORD = struct.Struct("=Q")
_NO_CALL = 0xFFFFFFFFFFFFFFFF


class ForcedExit:
    """Ends intercepted processes; to be used by one thread only, since ptrace belongs to threads.

    It may be made before the fork that uses it.  There `await_change` is set: it waits until a child or a
    traced thread has changed, for so many milliseconds at most.
    """

    await_change: Callable[[float], None]

    def __init__(self, kernel: Kernel) -> None:
        import ctypes

        self._kernel = kernel
        size, *self._places = _REGISTERS[kernel.machine]
        # What PTRACE_GETREGSET and SETREGSET take: a `struct iovec` of address and length.
        self._registers = ctypes.create_string_buffer(size)
        self._vector = ctypes.create_string_buffer(
            struct.pack("@PN", ctypes.addressof(self._registers), size), struct.calcsize("@PN")
        )
        self._no_call = ctypes.create_string_buffer(struct.pack("=i", -1), 4)
        self._no_call_vector = ctypes.create_string_buffer(
            struct.pack("@PN", ctypes.addressof(self._no_call), 4), struct.calcsize("@PN")
        )

    def end(self, listener: Listener, identity: int, tid: int, code: int) -> bool:
        """Make the process of an intercepted thread exit with a code; False if that is refused: it waits on.

        Takes microseconds; a thread that does not stop within seconds is killed.
        """
        try:
            # SEIZE and not ATTACH: that would send a SIGSTOP, which others could see.
            self._kernel.call("ptrace", _SEIZE, tid, 0, 0)
        except OSError as error:
            return error.errno == errno.ESRCH  # it has ended already
        try:
            # First the order to stop, then the answer.  In the other order the thread would run in between.
            self._kernel.call("ptrace", _INTERRUPT, tid, 0, 0)
            listener.fail(identity, _ANSWER)
            if self._await_stop(tid):
                self._leave(tid, code)
                self._kernel.call("ptrace", _DETACH, tid, 0, 0)
        except OSError as error:
            if error.errno != errno.ESRCH:
                self._kill(tid)
                return True
            # It died while we traced it.  Its parent hears of that only after the tracer has waited for it.
            self._await_stop(tid)
        return True

    def _await_stop(self, tid: int) -> bool:
        """Wait until a traced thread stands still; False if it is dead."""
        deadline = time.monotonic() + _STOP_S
        while True:
            try:
                pid, status = os.waitpid(tid, os.WNOHANG | _WALL)
            except ChildProcessError:
                return False
            if pid:
                return os.WIFSTOPPED(status)
            left = deadline - time.monotonic()
            if left <= 0:
                self._kill(tid)
                return False
            # Of many changes at once perhaps only one is signalled, so look again soon.
            self.await_change(min(left, 0.01) * 1000)

    def _leave(self, tid: int, code: int) -> None:
        pointer, call, first, restart, length, exit_group = self._places
        self._kernel.call("ptrace", _GET_REGISTERS, tid, _NT_PRSTATUS, self._vector)
        registers = self._registers
        # The pointer is behind the instruction that made the call.  Set back by its length, it makes another
        # call, with the number and the argument that are put here.
        (at,) = _WORD.unpack_from(registers, pointer)
        _WORD.pack_into(registers, pointer, at - length)
        _WORD.pack_into(registers, call, exit_group)
        _WORD.pack_into(registers, first, code)
        # With -1 the thread is no longer in a call, so the kernel does not restart the old one by itself.
        if restart < 0:
            self._kernel.call("ptrace", _SET_REGISTERS, tid, _NT_ARM_SYSTEM_CALL, self._no_call_vector)
        else:
            _WORD.pack_into(registers, restart, _NO_CALL)
        self._kernel.call("ptrace", _SET_REGISTERS, tid, _NT_PRSTATUS, self._vector)

    def _kill(self, tid: int) -> None:
        kill_thread(tid)


def kill_thread(tid: int) -> None:
    """Kill the process of a thread that is known to wait; one that has ended is no error."""
    try:
        os.kill(tid, _SIGKILL)
    except OSError:
        pass
