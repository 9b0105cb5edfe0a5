"""Plain starts with limits: a fork takes them on, in its control group from its first instruction.

`posix_spawn` can do neither with the C library that is carried (2.36).  The fork costs 0.8 ms more.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the plain calls, without enumerations
import errno
import gc
import os
import struct

from execserver.sandbox.kernel.namespaces import fork_into
from execserver.zygote.confine.child import take_default_signals
from execserver.zygote.libc import c_strings

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable, Sequence

    from execserver.resources.rlimits import ChildLimits
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.zygote.libc import Libc

    Strings = ctypes.Array[ctypes.c_char_p]

_ERRNO = struct.Struct("=i")
_EXIT = 127  # seen by nobody: the start has failed


class LimitedStarts:
    """Starts programs as `Libc` does, with limits; `group` is the descriptor of a control group, or -1."""

    def __init__(self, kernel: Kernel, libc: Libc, limits: ChildLimits, group: int) -> None:
        self._kernel = kernel
        self._libc = libc
        self._limits = limits
        self._group = group

    def spawn_on_pipes(
        self,
        path: bytes,
        argv: Sequence[bytes],
        env: Sequence[bytes],
        stdin: int | None,
        outputs: Sequence[int],
    ) -> int:
        """See `Libc.spawn_on_pipes`."""

        def take_stdio() -> None:
            os.dup2(os.open("/dev/null", os.O_RDWR) if stdin is None else stdin, 0)
            for number, output in enumerate(outputs, 1):
                os.dup2(output, number)

        return self._spawn(take_stdio, path, argv, env)

    def spawn_on_terminal(
        self, path: bytes, argv: Sequence[bytes], env: Sequence[bytes], slave: bytes
    ) -> int:
        """See `Libc.spawn_on_terminal`."""

        def take_stdio() -> None:
            # No O_NOCTTY: in the new session this open is what makes it the controlling terminal.
            terminal = os.open(slave, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(terminal, number)

        return self._spawn(take_stdio, path, argv, env)

    def _spawn(
        self, take_stdio: Callable[[], None], path: bytes, argv: Sequence[bytes], env: Sequence[bytes]
    ) -> int:
        strings = c_strings(argv), c_strings(env)
        told, tells = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                pid, _ = fork_into(self._kernel, 0, group=self._group)
                if pid == 0:
                    self._become(take_stdio, path, strings, tells)
            finally:
                os.close(tells)
            # The pipe ends with the exec, or holds why there was none.
            answer = os.read(told, _ERRNO.size)
        finally:
            os.close(told)
        if answer:
            os.waitpid(pid, 0)
            (number,) = _ERRNO.unpack(answer)
            raise OSError(number, os.strerror(number))
        return pid

    def _become(
        self,
        take_stdio: Callable[[], None],
        path: bytes,
        strings: tuple[Strings, Strings],
        tells: int,
    ) -> None:
        """Be the program, in a session of its own; never returns."""
        number = errno.EIO
        try:
            gc.disable()  # a collection writes to every object, and the fork would copy these pages
            os.setsid()
            take_stdio()
            take_default_signals()
            self._limits.apply()
            _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
            self._libc.execute(path, *strings)  # type: ignore[arg-type]
        except OSError as error:
            number = error.errno or number
        finally:
            os.write(tells, _ERRNO.pack(number))
            os._exit(_EXIT)
