"""Starting a program outside the sandbox, in place of a process that stays inside.

The program gets what its caller had, as far as that cannot turn it against anybody outside: folder,
environment, descriptors under their numbers, a stricter umask, a higher niceness, and the signals that shells
ignore for their jobs.  It gets a session of its own, default signals otherwise and an empty mask.  Resource
limits are the supervisor's: one that a command has chosen would end the program halfway, or make it dump
core.  It gets neither no_new_privs nor anything else of the sandbox.

The supervisor does not fork for it.  What posix_spawn cannot set, it sets for itself around the start.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the plain calls, without enumerations
import _thread
import ctypes
import errno
import fcntl
import functools
import os
import resource

from execserver.zygote.libc import c_strings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.zygote.supervision.trap.callers import Means

_SETSIGDEF_SETSIGMASK_SETSID = 0x04 | 0x08 | 0x80
_SIGSET_BYTES = 128
_OPAQUE_BYTES = 1024  # above every C library's posix_spawnattr_t and posix_spawn_file_actions_t
# The signals that shells ignore in their jobs, and `nohup` in its program.  A program that ignored its own
# alarms, SIGCHLD or SIGTERM would behave otherwise than whoever allowed it expects.
_MAY_BE_IGNORED = (
    *(_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGPIPE),
    *(_signal.SIGTSTP, _signal.SIGTTIN, _signal.SIGTTOU),
)
_MASK = sum(1 << number - 1 for number in _MAY_BE_IGNORED)
_IGNORED_BY_THE_INTERPRETER = 1 << _signal.SIGPIPE - 1  # of _MAY_BE_IGNORED, in this process from its start
_NOT_OF_THE_OWNER = 0o077  # without the owner's rights a program would fail on its own files
_NULL = b"/dev/null"


class Outside:
    """Starts programs as children of this process, which has all signals blocked and one thread, or two while
    it starts a program that is nicer than itself.

    It may be made before the fork that uses it.
    """

    def __init__(self) -> None:
        self._lib = ctypes.PyDLL(None, use_errno=True)  # it keeps the GIL, and nobody else needs it meanwhile
        self._actions = ctypes.create_string_buffer(_OPAQUE_BYTES)
        _check(self._lib.posix_spawn_file_actions_init(self._actions))
        self._arranged: tuple[tuple[int, int], ...] | None = None  # the descriptors that the actions are for
        self._env: tuple[Sequence[bytes], ctypes.Array[ctypes.c_char_p]] = (), c_strings(())
        self._no_signal = ctypes.create_string_buffer(_SIGSET_BYTES)
        self._attributes: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._ignored = _IGNORED_BY_THE_INTERPRETER
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._umask = os.umask(0o077)  # no call reads it without setting it
        os.umask(self._umask)
        self._attributes[0] = self._new_attributes(0)

    def start(self, file: bytes, argv: Sequence[bytes], means: Means) -> int:
        """Start a program and return its pid; it leads a session.  `means` stay the caller's.

        Raises OSError with the errno of the exec.
        """
        close_treacherous(means.descriptors)
        # The caller may have had higher numbers than this process's limit lets it use.
        if max(means.descriptors, default=0) >= resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._free(means.descriptors)
        # A umask can only take rights from others: bits are added to the supervisor's, none are removed.
        refused = (means.umask or 0) & _NOT_OF_THE_OWNER & ~self._umask
        attributes = self._ignore(means.ignored)
        try:
            os.fchdir(means.workdir)
            if refused:
                os.umask(self._umask | refused)
            spawn = functools.partial(self._spawn, file, argv, means.env, means.descriptors, attributes)
            nice = self._nice if means.nice is None else means.nice
            return spawn() if nice <= self._nice else _with_niceness(nice, spawn)
        finally:
            # The supervisor resolves paths of its own, and must not keep a folder from being unmounted.
            os.chdir("/")
            if refused:
                os.umask(self._umask)

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
            self._env = env, c_strings(env)  # most programs of a shell have the same one
        pid, strings = ctypes.c_int(), (c_strings(argv), self._env[1])
        _check(self._lib.posix_spawn(ctypes.byref(pid), file, self._actions, attributes, *strings))
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

    def _ignore(self, mask: int) -> ctypes.Array[ctypes.c_char]:
        """Ignore what may be ignored of a mask, for a child to inherit; return the attributes for it."""
        # posix_spawn can set signals to their default, but not ignore them: a child inherits that.  To ignore
        # a signal discards it even if it is blocked, so none that the supervisor waits for is in _MASK.
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


def _with_niceness(nice: int, spawn: Callable[[], int]) -> int:
    """Return what `spawn` does in a thread of this niceness; raise what it raises, or EAGAIN.

    Linux keeps niceness for each thread, and a child has that of the thread which starts it.  Nobody but root
    could take it back from this one, and a child that is told afterwards has begun to run, on a busy machine.
    """
    outcome: list[int | BaseException] = []
    ended = _thread.allocate_lock()

    def run() -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, nice)
            outcome.append(spawn())
        except BaseException as error:
            outcome.append(error)
        finally:
            ended.release()

    ended.acquire()
    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
    ended.acquire()
    (found,) = outcome
    if isinstance(found, BaseException):
        raise found
    return found


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
