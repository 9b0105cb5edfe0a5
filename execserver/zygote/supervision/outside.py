"""Starting a program outside, in place of a process that stays inside.

It gets what its caller had: folder, environment, descriptors under their numbers, umask, niceness, soft
limits, ignored signals; and a session of its own, default signals otherwise and an empty mask.  It does not
get no_new_privs, nor anything of the sandbox.  The supervisor does no fork for it: what posix_spawn cannot
set it sets for itself around the start, which only a signal that it must not lose itself forbids.  Limits
that it could not bear itself, like those of memory, take a fork.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the plain calls, without enumerations
import ctypes
import errno
import fcntl
import os
import resource

from execserver.zygote.libc import c_strings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from execserver.zygote.supervision.callers import Means

_SETSIGDEF_SETSIGMASK_SETSID = 0x04 | 0x08 | 0x80
_SIGSET_BYTES = 128
_OPAQUE_BYTES = 1024  # above every C library's posix_spawnattr_t and posix_spawn_file_actions_t
_KINDS_KEPT = 64
_NOT_HERE = (resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_AS)
_SIGKILL, _SIGCHLD, _SIGTERM, _SIGSTOP = 9, 17, 15, 19
# Those the C library keeps for itself, those nobody can ignore, and those the supervisor waits for.
_NEVER_IGNORED = (32, 33, _SIGKILL, _SIGSTOP, _SIGCHLD, _SIGTERM)
_TO_IGNORE = tuple(number for number in range(1, 65) if number not in _NEVER_IGNORED)
_MASK = sum(1 << number - 1 for number in _TO_IGNORE)
_IGNORED_BY_THE_INTERPRETER = 1 << _signal.SIGPIPE - 1 | 1 << _signal.SIGXFSZ - 1


class Outside:
    """Starts programs as children of this process, which has one thread and all signals blocked.

    It may be made before the fork that uses it.
    """

    def __init__(self) -> None:
        self._lib = ctypes.PyDLL(None, use_errno=True)  # one thread needs no lock to be given away
        self._actions = ctypes.create_string_buffer(_OPAQUE_BYTES)
        _check(self._lib.posix_spawn_file_actions_init(self._actions))
        self._arranged: tuple[tuple[int, int], ...] | None = None  # what the actions do
        self._env: tuple[Sequence[bytes], ctypes.Array[ctypes.c_char_p]] = (), c_strings(())
        self._no_signal = ctypes.create_string_buffer(_SIGSET_BYTES)
        self._attributes: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._ignored = _IGNORED_BY_THE_INTERPRETER
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._attributes[0] = self._new_attributes(0)

    def start(self, file: bytes, argv: Sequence[bytes], means: Means) -> int:
        """Start a program and return its pid, which leads a session; `means` stay the caller's.

        Raises OSError with the errno of the exec.
        """
        self._free(means.descriptors)
        late = _not_for_this_process(means)
        limits = self._take_limits(means.limits or {}, late)
        umask = None if means.umask is None else os.umask(means.umask)
        attributes = self._ignore(means.ignored)
        try:
            os.fchdir(means.workdir)
            if late:
                pid = self._fork(file, argv, means, late)
            else:
                pid = self._spawn(file, argv, means.env, means.descriptors, attributes)
        finally:
            os.chdir("/")
            if umask is not None:
                os.umask(umask)
            for number, limit in limits:
                resource.setrlimit(number, limit)
        self._renice(pid, means.nice)
        return pid

    def _spawn(
        self,
        file: bytes,
        argv: Sequence[bytes],
        env: Sequence[bytes],
        descriptors: dict[int, int],
        attributes: ctypes.Array[ctypes.c_char],
    ) -> int:
        self._arrange(descriptors)
        if self._env[0] is not env:
            self._env = env, c_strings(env)  # the programs of a shell mostly share theirs
        pid, strings = ctypes.c_int(), (c_strings(argv), self._env[1])
        _check(self._lib.posix_spawn(ctypes.byref(pid), file, self._actions, attributes, *strings))
        return pid.value

    def _arrange(self, descriptors: dict[int, int]) -> None:
        """Have the actions give a program its descriptors, which mostly have the same numbers again."""
        wanted = tuple(descriptors.items())
        if wanted == self._arranged:
            return
        lib, actions, self._arranged = self._lib, self._actions, None
        _check(lib.posix_spawn_file_actions_destroy(actions))
        _check(lib.posix_spawn_file_actions_init(actions))
        for number, descriptor in descriptors.items():
            _check(lib.posix_spawn_file_actions_adddup2(actions, descriptor, number))
        for number in (0, 1, 2):
            if number not in descriptors:
                _check(lib.posix_spawn_file_actions_addclose(actions, number))
        self._arranged = wanted

    def _free(self, descriptors: dict[int, int]) -> None:
        """Move descriptors away from the numbers that others must get."""
        if descriptors.keys().isdisjoint(descriptors.values()):
            return
        above = max(max(descriptors), *descriptors.values()) + 1
        for number, descriptor in descriptors.items():
            if descriptor in descriptors:
                descriptors[number] = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above)
                os.close(descriptor)

    def _take_limits(self, limits: dict[int, int], late: dict[int, int]) -> list[tuple[int, tuple[int, int]]]:
        """Take soft limits on, for a child to inherit; return what they were."""
        before = []
        for number, soft in limits.items():
            if number in late:
                continue
            own = resource.getrlimit(number)
            try:
                resource.setrlimit(number, (soft, own[1]))
            except (OSError, ValueError):
                continue  # above what this process may have itself
            before.append((number, own))
        return before

    def _fork(self, file: bytes, argv: Sequence[bytes], means: Means, late: dict[int, int]) -> int:
        """Start a program under limits that this process could not bear itself: as posix_spawn, but slower.

        The program must never run without them, so they are set before the exec.
        """
        strings = c_strings(argv), c_strings(means.env)
        heard, told = os.pipe2(os.O_CLOEXEC)
        above = max(*means.descriptors, *means.descriptors.values(), 2, told) + 1
        writer = fcntl.fcntl(told, fcntl.F_DUPFD_CLOEXEC, above)
        os.close(told)
        pid = os.fork()
        if pid == 0:
            failed = errno.EIO
            try:
                _arrange(means.descriptors, late)
                self._lib.execve(file, *strings)
                failed = ctypes.get_errno()
            except OSError as error:
                failed = error.errno or failed
            finally:
                os.write(writer, bytes((failed,)))
                os._exit(127)
        os.close(writer)
        told_errno = os.read(heard, 1)
        os.close(heard)
        if told_errno:
            os.waitpid(pid, 0)
            _check(told_errno[0])
        return pid

    def _ignore(self, mask: int) -> ctypes.Array[ctypes.c_char]:
        """Ignore exactly the signals of a mask, for a child to inherit; return the attributes for it."""
        mask &= _MASK
        if mask != self._ignored:
            for number in _TO_IGNORE:
                if (mask ^ self._ignored) >> number - 1 & 1:
                    ignored = mask >> number - 1 & 1
                    _signal.signal(number, _signal.SIG_IGN if ignored else _signal.SIG_DFL)
            self._ignored = mask
        found = self._attributes.get(mask)
        if found is None:
            if len(self._attributes) >= _KINDS_KEPT:
                self._attributes.clear()
            found = self._attributes[mask] = self._new_attributes(mask)
        return found

    def _new_attributes(self, ignored: int) -> ctypes.Array[ctypes.c_char]:
        lib, attributes = self._lib, ctypes.create_string_buffer(_OPAQUE_BYTES)
        default = (~ignored & (1 << 64) - 1).to_bytes(8, "little").ljust(_SIGSET_BYTES, b"\0")
        _check(lib.posix_spawnattr_init(attributes))
        _check(lib.posix_spawnattr_setflags(attributes, ctypes.c_short(_SETSIGDEF_SETSIGMASK_SETSID)))
        _check(lib.posix_spawnattr_setsigdefault(attributes, default))
        _check(lib.posix_spawnattr_setsigmask(attributes, self._no_signal))
        return attributes

    def _renice(self, pid: int, nice: int | None) -> None:
        if nice is not None and nice != self._nice:
            try:
                os.setpriority(os.PRIO_PROCESS, pid, nice)
            except OSError:
                pass  # only who may raise it


def _check(number: int) -> None:
    """The posix_spawn family returns the error instead of setting errno."""
    if number:
        raise OSError(number, os.strerror(number))


def _not_for_this_process(means: Means) -> dict[int, int]:
    """Return the soft limits under which this process could not start a program.

    Too few descriptors are one where those that the program is to get lie above.
    """
    limits = means.limits or {}
    late = {number: limits[number] for number in _NOT_HERE if number in limits}
    files = limits.get(resource.RLIMIT_NOFILE)
    if files is not None and (late or files <= max(means.descriptors, default=2)):
        late[resource.RLIMIT_NOFILE] = files
    return late


def _arrange(descriptors: dict[int, int], limits: dict[int, int]) -> None:
    """In a child that is to become a program: give it session, descriptors, limits and an empty mask."""
    os.setsid()
    for number, descriptor in descriptors.items():
        os.dup2(descriptor, number)
    for number in (0, 1, 2):
        if number not in descriptors:
            _close(number)
    for number, soft in limits.items():
        try:
            resource.setrlimit(number, (soft, resource.getrlimit(number)[1]))
        except (OSError, ValueError):
            continue  # above what this process may have itself
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def _close(number: int) -> None:
    try:
        os.close(number)
    except OSError:
        pass  # it is closed
