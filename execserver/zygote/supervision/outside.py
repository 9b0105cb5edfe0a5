"""Starting a program outside the sandbox, in place of a process that stays inside.

The program gets what its caller had, as far as that cannot turn it against anybody outside: folder,
environment, descriptors under their numbers, a stricter umask, ignored and blocked signals, and what
`inheritance` names.  It gets a session of its own.  Resource limits are the supervisor's, since one that a
command has chosen might end the program halfway, or make it dump core.  It gets neither no_new_privs nor
anything else of the sandbox.

The supervisor does not fork for a usual program.  What posix_spawn cannot set, it sets for itself around the
start, if that does no harm meanwhile.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the plain calls, without enumerations
import ctypes
import errno
import fcntl
import functools
import os
import resource

from execserver.sandbox.kernel.syscalls import Kernel
from execserver.zygote.confine.child import EVERY_SIGNAL
from execserver.zygote.libc import c_strings
from execserver.zygote.supervision.inheritance import Inherited
from execserver.zygote.supervision.started_apart import start_in_fork, start_in_thread
from execserver.zygote.supervision.trap.process_status import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.zygote.supervision.trap.callers import Means

_SETSIGDEF_SETSIGMASK_SETSID = 0x04 | 0x08 | 0x80
_SIGSET_BYTES = 128
_OPAQUE_BYTES = 1024  # above every C library's posix_spawnattr_t and posix_spawn_file_actions_t
# The supervisor can ignore all but those that it waits for: to ignore one discards it, even if blocked.
_UNCATCHABLE_OR_AWAITED = (_signal.SIGKILL, _signal.SIGSTOP, _signal.SIGTERM, _signal.SIGCHLD)
_MAY_BE_IGNORED = tuple(number for number in EVERY_SIGNAL if number not in _UNCATCHABLE_OR_AWAITED)
_MASK = sum(1 << number - 1 for number in _MAY_BE_IGNORED)
_SET_MASK, _MASK_BYTES = 2, 8
_NOT_OF_THE_OWNER = 0o077  # without the owner's rights a program would fail on its own files
_NULL = b"/dev/null"


class Outside:
    """Starts programs as children of this process, which has one thread and all signals blocked.

    It may be made before the fork that uses it.
    """

    def __init__(self, kernel: Kernel | None = None) -> None:
        self._kernel = kernel or Kernel()
        self._lib = ctypes.PyDLL(None, use_errno=True)  # it keeps the GIL, and nobody else needs it meanwhile
        self._actions = ctypes.create_string_buffer(_OPAQUE_BYTES)
        _check(self._lib.posix_spawn_file_actions_init(self._actions))
        self._arranged: tuple[tuple[int, int], ...] | None = None  # the descriptors that the actions are for
        self._env: tuple[Sequence[bytes], ctypes.Array[ctypes.c_char_p]] = (), c_strings(())
        own = os.getpid()
        self._own = Inherited(self._kernel, own, Status(own))
        self._ignored = _MASK & self._own.ignored
        self._attributes = self._new_attributes()
        self._set = -1, -1  # the masks that these are for

    def start(self, file: bytes, argv: Sequence[bytes], means: Means) -> int:
        """Start a program and return its pid; it leads a session.  `means` stay the caller's.

        Raises OSError with the errno of the exec, or of what it cannot inherit.
        """
        close_treacherous(means.descriptors)
        # The caller may have had higher numbers than this process's limit lets it use.
        highest = max(means.descriptors, default=0)
        if highest > 2 and highest >= resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._free(means.descriptors)
        given = means.inherited
        # A umask can only take rights from others: bits are added to the supervisor's, none are removed.
        refused = 0 if given is None else given.umask & _NOT_OF_THE_OWNER & ~self._own.umask
        try:
            os.fchdir(means.workdir)
            if refused:
                os.umask(self._own.umask | refused)
            return self._start(file, argv, means)
        finally:
            # The supervisor resolves paths of its own, and must not keep a folder from being unmounted.
            os.chdir("/")
            if refused:
                os.umask(self._own.umask)

    def _start(self, file: bytes, argv: Sequence[bytes], means: Means) -> int:
        given = means.inherited
        if given is None:
            self._set_signals(0, 0)
            return self._spawn(file, argv, means.env, means.descriptors)

        def prepare() -> None:
            given.adopt(self._kernel, self._own)

        if given.ignored & ~_MASK or given.needs_process(self._own):
            execute = self._executing(file, argv, means.env, given.blocked)
            return start_in_fork(prepare, execute, means.descriptors, given.ignored)
        self._set_signals(given.ignored & _MASK, given.blocked)
        spawn = functools.partial(self._spawn, file, argv, means.env, means.descriptors)
        return start_in_thread(prepare, spawn) if given.is_scheduled_apart(self._own) else spawn()

    def _executing(
        self, file: bytes, argv: Sequence[bytes], env: Sequence[bytes], blocked: int
    ) -> Callable[[], None]:
        def execute() -> None:
            mask = blocked.to_bytes(_MASK_BYTES, "little")
            self._kernel.call("rt_sigprocmask", _SET_MASK, mask, None, _MASK_BYTES)
            self._lib.execve(file, c_strings(argv), c_strings(env))
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

        return execute

    def _spawn(
        self,
        file: bytes,
        argv: Sequence[bytes],
        env: Sequence[bytes],
        descriptors: dict[int, int],
    ) -> int:
        self._arrange(descriptors)
        if self._env[0] is not env:
            self._env = env, c_strings(env)  # most programs of a shell have the same one
        pid, strings = ctypes.c_int(), (c_strings(argv), self._env[1])
        _check(self._lib.posix_spawn(ctypes.byref(pid), file, self._actions, self._attributes, *strings))
        return pid.value

    def _arrange(self, descriptors: dict[int, int]) -> None:
        """Prepare the spawn actions for a program's descriptors, mostly the same numbers as last time."""
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
                # If closed, the first file that the program opens would become its stderr, say.
                _check(lib.posix_spawn_file_actions_addopen(actions, number, _NULL, os.O_RDWR, 0))
        self._arranged = wanted

    def _free(self, descriptors: dict[int, int]) -> None:
        """Move descriptors away from the numbers that others must get."""
        # The actions are carried out one by one: a dup2 may overwrite what a later one is to copy.
        if descriptors.keys().isdisjoint(descriptors.values()):
            return
        above = max(max(descriptors), *descriptors.values()) + 1
        for number, descriptor in descriptors.items():
            if descriptor in descriptors:
                descriptors[number] = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above)
                os.close(descriptor)

    def _set_signals(self, ignored: int, blocked: int) -> None:
        """Have a child ignore and block the signals of two masks, and no others."""
        if (ignored, blocked) == self._set:
            return
        # posix_spawn can set signals to their default, but not ignore them: a child inherits that.
        for number in _MAY_BE_IGNORED:
            if (ignored ^ self._ignored) >> number - 1 & 1:
                wanted = ignored >> number - 1 & 1
                _signal.signal(number, _signal.SIG_IGN if wanted else _signal.SIG_DFL)
        self._ignored = ignored
        lib, attributes = self._lib, self._attributes
        _check(lib.posix_spawnattr_setsigdefault(attributes, _signals(~ignored & (1 << 64) - 1)))
        _check(lib.posix_spawnattr_setsigmask(attributes, _signals(blocked)))
        self._set = ignored, blocked

    def _new_attributes(self) -> ctypes.Array[ctypes.c_char]:
        lib, attributes = self._lib, ctypes.create_string_buffer(_OPAQUE_BYTES)
        _check(lib.posix_spawnattr_init(attributes))
        _check(lib.posix_spawnattr_setflags(attributes, ctypes.c_short(_SETSIGDEF_SETSIGMASK_SETSID)))
        return attributes


def _signals(mask: int) -> bytes:
    return mask.to_bytes(_MASK_BYTES, "little").ljust(_SIGSET_BYTES, b"\0")


def _check(number: int) -> None:
    """Raise OSError unless 0: the posix_spawn family returns the error instead of setting errno."""
    if number:
        raise OSError(number, os.strerror(number))


def forbid_cores() -> None:
    """Have nothing that is started from now on dump core.

    The caller chooses the folder, and so where a core would be written with the rights of a program outside.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def close_treacherous(descriptors: dict[int, int]) -> None:
    """Close and remove descriptors that give more rights outside than inside.

    A program that opens `/dev/stderr` opens the file behind its descriptor again, with its own rights.  The
    caller may not have been able to write that file, only to open it for reading or with O_PATH.
    """
    for number, descriptor in list(descriptors.items()):
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        unwritable = number in (1, 2) and flags & os.O_ACCMODE == os.O_RDONLY
        if flags & os.O_PATH or unwritable:
            del descriptors[number]
            os.close(descriptor)
