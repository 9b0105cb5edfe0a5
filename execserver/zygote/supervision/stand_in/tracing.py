"""The ptrace calls that a stand-in takes, to be made by one thread only.

A thread that has died meanwhile is no error: its end is reported as every other.
"""

from __future__ import annotations

import errno
import struct

from execserver.zygote.supervision.stand_in.registers import REGISTERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.kernel.syscalls import Kernel

# What os.WSTOPSIG and the bits above say of a stop.
EVENT_EXEC, EVENT_STOP = 4, 128
SYSTEM_CALL = 0x85  # SIGTRAP, marked

_CONT, _DETACH, _SYSCALL = 7, 17, 24
_GETEVENTMSG, _GETSIGINFO = 0x4201, 0x4202
_GETREGSET, _SETREGSET, _SEIZE, _INTERRUPT, _LISTEN = 0x4204, 0x4205, 0x4206, 0x4207, 0x4208
_SETSIGMASK = 0x420B
_OPTIONS = 0x1 | 0x10 | 0x100000  # marked stops at system calls, EVENT_EXEC, and death with the tracer
_NT_PRSTATUS = 1
_SIGINFO_BYTES, _CODE = 128, struct.Struct("=8xi")
_MASK_BYTES = 8


class Tracing:
    """The calls, and the buffers for them; `layout` says which register is what.

    Raises KeyError for a CPU without one.
    """

    def __init__(self, kernel: Kernel) -> None:
        import ctypes

        self._kernel = kernel
        self.layout = REGISTERS[kernel.machine]
        self._packed = self.layout.packed
        self._registers = ctypes.create_string_buffer(self._packed.size)
        self._vector = ctypes.create_string_buffer(
            struct.pack("@PN", ctypes.addressof(self._registers), self._packed.size), struct.calcsize("@PN")
        )
        self._more = ctypes.create_string_buffer(_SIGINFO_BYTES)

    def seize(self, tid: int) -> None:
        """Trace a thread, which goes on meanwhile.  Raises OSError."""
        self._kernel.call("ptrace", _SEIZE, tid, 0, _OPTIONS)

    def interrupt(self, tid: int) -> None:
        """Have a traced thread stop at its next chance, with EVENT_STOP."""
        self._call(_INTERRUPT, tid)

    def resume(self, tid: int, signum: int = 0) -> None:
        """Let a stopped thread run on; at the delivery of a signal, with that one or, for 0, without."""
        self._call(_CONT, tid, 0, signum)

    def to_next_call(self, tid: int, signum: int = 0) -> None:
        """Let it run to where a system call begins or ends."""
        self._call(_SYSCALL, tid, 0, signum)

    def listen(self, tid: int) -> None:
        """Let a thread whose process is stopped stay so, and hear when it is continued."""
        self._call(_LISTEN, tid)

    def leave(self, tid: int) -> None:
        """Let a stopped thread run on untraced."""
        self._call(_DETACH, tid)

    def registers(self, tid: int) -> list[int]:
        """Return the registers of a stopped thread; zeros of one that has died."""
        self._registers.raw = bytes(self._packed.size)
        self._call(_GETREGSET, tid, _NT_PRSTATUS, self._vector)
        return list(self._packed.unpack(self._registers.raw))

    def set_registers(self, tid: int, registers: list[int]) -> None:
        """Set the registers of a stopped thread."""
        self._registers.raw = self._packed.pack(*registers)
        self._call(_SETREGSET, tid, _NT_PRSTATUS, self._vector)

    def block_signals(self, tid: int, mask: int) -> None:
        """Set the mask of blocked signals of a stopped thread, bit N-1 for signal N."""
        self._call(_SETSIGMASK, tid, _MASK_BYTES, mask.to_bytes(_MASK_BYTES, "little"))

    def former_thread(self, tid: int) -> int:
        """Return the number that a thread had before the exec at which it is stopped."""
        self._call(_GETEVENTMSG, tid, 0, self._more)
        return int.from_bytes(self._more.raw[:8], "little")

    def signal_code(self, tid: int) -> int:
        """Return where the signal comes from that a thread is stopped at: above 0 from the kernel."""
        self._more.raw = bytes(_SIGINFO_BYTES)
        self._call(_GETSIGINFO, tid, 0, self._more)
        return int(_CODE.unpack_from(self._more.raw)[0])

    def _call(self, request: int, tid: int, address: int = 0, data: object = 0) -> None:
        try:
            self._kernel.call("ptrace", request, tid, address, data)
        except OSError as error:
            if error.errno != errno.ESRCH:
                raise
