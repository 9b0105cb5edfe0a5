"""Starting a program outside, in place of a process that stays inside.

It gets what its caller had as far as that cannot turn it against anybody outside: folder, environment,
descriptors under their numbers, a stricter umask, a higher niceness, ignored signals of a shell's own making;
and a session of its own, default signals otherwise and an empty mask.  Resource limits are the supervisor's:
one that a command has chosen would end the program halfway, or have it dump core.  It does not get
no_new_privs, nor anything of the sandbox.  The supervisor does no fork for it: what posix_spawn cannot set it
sets for itself around the start, which only a signal that it must not lose itself forbids.
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
# What shells have their jobs and `nohup` its program ignore.  A program that is deaf to its own alarms, to
# SIGCHLD or to SIGTERM would behave otherwise than whoever allowed it knows.
_MAY_BE_IGNORED = (
    *(_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGPIPE),
    *(_signal.SIGTSTP, _signal.SIGTTIN, _signal.SIGTTOU),
)
_MASK = sum(1 << number - 1 for number in _MAY_BE_IGNORED)
_IGNORED_BY_THE_INTERPRETER = 1 << _signal.SIGPIPE - 1
_NOT_OF_THE_OWNER = 0o077  # who takes the owner's rights away has the program fail on its own files
_NULL = b"/dev/null"


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
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._attributes[0] = self._new_attributes(0)

    def start(self, file: bytes, argv: Sequence[bytes], means: Means) -> int:
        """Start a program and return its pid, which leads a session; `means` stay the caller's.

        Raises OSError with the errno of the exec.
        """
        close_treacherous(means.descriptors)
        if max(means.descriptors, default=0) >= resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._free(means.descriptors)
        refused = (means.umask or 0) & _NOT_OF_THE_OWNER & ~self._umask
        attributes = self._ignore(means.ignored)
        try:
            os.fchdir(means.workdir)
            if refused:
                os.umask(self._umask | refused)
            pid = self._spawn(file, argv, means.env, means.descriptors, attributes)
        finally:
            os.chdir("/")
            if refused:
                os.umask(self._umask)
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
                # Else the first file that the program opens would be its stderr.
                _check(lib.posix_spawn_file_actions_addopen(actions, number, _NULL, os.O_RDWR, 0))
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

    def _ignore(self, mask: int) -> ctypes.Array[ctypes.c_char]:
        """Ignore what may be ignored of a mask, for a child to inherit; return the attributes for it."""
        mask &= _MASK
        if mask != self._ignored:
            for number in _MAY_BE_IGNORED:
                if (mask ^ self._ignored) >> number - 1 & 1:
                    ignored = mask >> number - 1 & 1
                    _signal.signal(number, _signal.SIG_IGN if ignored else _signal.SIG_DFL)
            self._ignored = mask
        found = self._attributes.get(mask)
        if found is None:
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
        if nice is not None and nice > self._nice:
            try:
                os.setpriority(os.PRIO_PROCESS, pid, nice)
            except OSError:
                pass  # a set-user-id program that is somebody else's by now


def _check(number: int) -> None:
    """The posix_spawn family returns the error instead of setting errno."""
    if number:
        raise OSError(number, os.strerror(number))


def forbid_cores() -> None:
    """Have nothing that is started from now on dump core: where, its caller's folder and arguments say."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def close_treacherous(descriptors: dict[int, int]) -> None:
    """Close, and forget, descriptors that lead further outside than they do inside.

    A program that opens `/dev/stderr` opens what its descriptor leads to once more, with its own rights: a
    file that the caller could not write, though it could open it for reading or as a mere path.
    """
    for number, descriptor in list(descriptors.items()):
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        unwritable = number in (1, 2) and flags & os.O_ACCMODE == os.O_RDONLY
        if flags & os.O_PATH or unwritable:
            del descriptors[number]
            os.close(descriptor)
