"""The few C library calls that Python does not offer as the zygote needs them.

posix_spawn starts programs without running any code of ours in the child.  It takes the environment as raw
strings, so names with `=` and empty names, which the wire contract passes on and Python refuses, work.  It
makes a new session before it opens the terminal, so the open makes it the controlling one.  Failures raise
OSError with the errno of the call that failed in the child.
"""

from __future__ import annotations

import ctypes
import os

from execserver.resources.rlimits import ChildLimits
from execserver.sandbox.kernel import limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_UNLIMITED = ChildLimits()
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_SETPGROUP = 0x02
_SETSIGDEF = 0x04
_SETSIGMASK = 0x08
_SETSID = 0x80
_SFD_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK
_SIG_BLOCK = 0
_SIGSET_BYTES = 128
_OPAQUE_BYTES = 1024  # above every C library's posix_spawnattr_t and posix_spawn_file_actions_t
_SYS_PIDFD_SEND_SIGNAL = 424  # the same number on every architecture


class Libc:
    """The calls, and the attributes that all spawns share."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL(None, use_errno=True)
        self._attributes = self._spawn_attributes(_SETSID | _SETSIGDEF | _SETSIGMASK)
        self._in_session = self._spawn_attributes(_SETSIGDEF | _SETSIGMASK)
        self._as_this = self._spawn_attributes(0)
        self._in_group = self._spawn_attributes(_SETPGROUP | _SETSIGDEF | _SETSIGMASK)
        self._actions = ctypes.create_string_buffer(_OPAQUE_BYTES)  # one for all spawns: there is one thread

    def spawn_on_pipes(
        self,
        path: bytes,
        argv: Sequence[bytes],
        env: Sequence[bytes],
        stdin: int | None,
        outputs: Sequence[int],
    ) -> int:
        """Start a program in a new session; return its pid.

        `outputs` are its stdout and stderr; its stdin is `stdin`, or the null device for None.
        """
        lib, actions = self._lib, self._actions
        _check(lib.posix_spawn_file_actions_init(actions))
        try:
            if stdin is None:
                _check(lib.posix_spawn_file_actions_addopen(actions, 0, b"/dev/null", os.O_RDWR, 0))
            else:
                _check(lib.posix_spawn_file_actions_adddup2(actions, stdin, 0))
            for number, output in enumerate(outputs, 1):
                _check(lib.posix_spawn_file_actions_adddup2(actions, output, number))
            return self._spawn(path, argv, env, actions, self._attributes)
        finally:
            lib.posix_spawn_file_actions_destroy(actions)

    def spawn_on_terminal(
        self, path: bytes, argv: Sequence[bytes], env: Sequence[bytes], slave: bytes
    ) -> int:
        """Start a program in a new session with a terminal; return its pid.

        `slave` is the path of a pty's slave, which becomes stdio and the controlling terminal.
        """
        lib, actions = self._lib, self._actions
        _check(lib.posix_spawn_file_actions_init(actions))
        try:
            # No O_NOCTTY: in the new session this open is what makes it the controlling terminal.
            _check(lib.posix_spawn_file_actions_addopen(actions, 0, slave, os.O_RDWR, 0))
            _check(lib.posix_spawn_file_actions_adddup2(actions, 0, 1))
            _check(lib.posix_spawn_file_actions_adddup2(actions, 0, 2))
            return self._spawn(path, argv, env, actions, self._attributes)
        finally:
            lib.posix_spawn_file_actions_destroy(actions)

    def spawn_in_session(
        self, path: bytes, argv: Sequence[bytes], env: Sequence[bytes], own: ChildLimits = _UNLIMITED
    ) -> int:
        """Start a program in this process's session and group, with its stdio; return its pid."""
        # Commands in a sandbox root are started this way.  They get a lower limit of open files than ours:
        # descriptors in unread messages count for the user, so a command could use up everybody's share.
        limits.leave_descriptors_to_others()
        own.apply()
        return self._spawn(path, argv, env, None, self._in_session)

    def spawn_in_group(self, path: bytes, argv: Sequence[bytes], env: Sequence[bytes]) -> int:
        """Start a program in this process's session and a group of its own; return its pid."""
        return self._spawn(path, argv, env, None, self._in_group)

    def spawn_on_socket(self, path: bytes, argv: Sequence[bytes], socket: int, number: int) -> int:
        """Start a program of ours with a socket under a number; return its pid.

        It has no other descriptors, no environment, and this process's signals.
        """
        lib, actions = self._lib, self._actions
        _check(lib.posix_spawn_file_actions_init(actions))
        try:
            _check(lib.posix_spawn_file_actions_adddup2(actions, socket, number))
            for null in (0, 1, 2):
                _check(lib.posix_spawn_file_actions_addopen(actions, null, b"/dev/null", os.O_RDWR, 0))
            return self._spawn(path, argv, (), actions, self._as_this)
        finally:
            lib.posix_spawn_file_actions_destroy(actions)

    def execute(self, path: bytes, argv: Sequence[bytes], env: Sequence[bytes]) -> int:
        """Become another program; returns only by raising OSError."""
        return self._call(self._lib.execve(path, c_strings(argv), c_strings(env)))

    def _spawn(
        self,
        path: bytes,
        argv: Sequence[bytes],
        env: Sequence[bytes],
        actions: ctypes.Array[ctypes.c_char] | None,
        attributes: ctypes.Array[ctypes.c_char],
    ) -> int:
        pid = ctypes.c_int()
        strings = c_strings(argv), c_strings(env)
        # posix_spawn returns once the exec has succeeded or failed, with the errno of the child.
        _check(self._lib.posix_spawn(ctypes.byref(pid), path, actions, attributes, *strings))
        return pid.value

    def _spawn_attributes(self, flags: int) -> ctypes.Array[ctypes.c_char]:
        """Return attributes for default signals, an empty mask and what the flags say."""
        lib = self._lib
        # Blocked and ignored signals survive an exec, and the zygote blocks some.  Here each one is named,
        # which Python's own posix_spawn cannot do: else the C library has a child ignore its own (32, 33).
        attributes = ctypes.create_string_buffer(_OPAQUE_BYTES)
        every_signal = ctypes.create_string_buffer(b"\xff" * _SIGSET_BYTES, _SIGSET_BYTES)
        no_signal = ctypes.create_string_buffer(_SIGSET_BYTES)
        _check(lib.posix_spawnattr_init(attributes))
        _check(lib.posix_spawnattr_setflags(attributes, ctypes.c_short(flags)))
        _check(lib.posix_spawnattr_setsigdefault(attributes, every_signal))
        _check(lib.posix_spawnattr_setsigmask(attributes, no_signal))
        return attributes

    def set_child_subreaper(self) -> None:
        """Make orphaned descendants children of this process instead of the init's."""
        self._call(self._lib.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0))

    def set_undumpable(self) -> None:
        """Close this process's memory and /proc entries to processes of the same user."""
        self._call(self._lib.prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(0), 0, 0, 0))

    def block_and_watch(self, blocked: Sequence[int], watched: int) -> int:
        """Block signals in this process; return a signalfd, owned by the caller, that reports `watched`."""
        self._call(self._lib.sigprocmask(_SIG_BLOCK, self._sigset([*blocked, watched]), None))
        return self._call(self._lib.signalfd(-1, self._sigset([watched]), _SFD_FLAGS))

    def take_signals(self, taken: Sequence[int]) -> int:
        """Block signals in this process; return a descriptor, owned by the caller, to read them from."""
        sigset = self._sigset(taken)
        descriptor = self._call(self._lib.signalfd(-1, sigset, _SFD_FLAGS))
        self._call(self._lib.sigprocmask(_SIG_BLOCK, sigset, None))
        return descriptor

    def send_signal(self, pidfd: int, signum: int) -> None:
        """Send a signal to the process of a pidfd, and to no other."""
        arguments = (ctypes.c_long(pidfd), ctypes.c_long(signum), None, ctypes.c_long(0))
        self._call(self._lib.syscall(ctypes.c_long(_SYS_PIDFD_SEND_SIGNAL), *arguments))

    def _sigset(self, numbers: Sequence[int]) -> ctypes.Array[ctypes.c_char]:
        sigset = ctypes.create_string_buffer(_SIGSET_BYTES)
        for number in numbers:
            self._call(self._lib.sigaddset(sigset, number))
        return sigset

    def _call(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


def c_strings(strings: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    """Return an array of pointers that ends with a null pointer, as the kernel takes argv and environment.

    A result of this function is returned as it is.
    """
    if isinstance(strings, ctypes.Array):
        return strings
    return (ctypes.c_char_p * (len(strings) + 1))(*strings)


def _check(number: int) -> None:
    """Raise OSError unless 0: the posix_spawn family returns the error instead of setting errno."""
    if number:
        raise OSError(number, os.strerror(number))
