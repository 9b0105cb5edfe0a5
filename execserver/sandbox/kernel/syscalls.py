"""The system calls of the sandbox by name: their numbers, and one way to make them that checks the result."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# The same numbers on every architecture.
_COMMON = {
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "clone3": 435,
    "close_range": 436,
    "openat2": 437,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}
_NUMBERS = {
    "x86_64": {
        **_COMMON,
        "write": 1,
        "close": 3,
        "rt_sigprocmask": 14,
        "clone": 56,
        "chdir": 80,
        "fchdir": 81,
        "ptrace": 101,
        "capset": 126,
        "pivot_root": 155,
        "prctl": 157,
        "mount": 165,
        "umount2": 166,
        "add_key": 248,
        "keyctl": 250,
        "ioprio_set": 251,
        "ioprio_get": 252,
        "openat": 257,
        "mkdirat": 258,
        "mknodat": 259,
        "unlinkat": 263,
        "symlinkat": 266,
        "ppoll": 271,
        "unshare": 272,
        "setns": 308,
        "kcmp": 312,
        "sched_setattr": 314,
        "sched_getattr": 315,
        "seccomp": 317,
    },
    "aarch64": {
        **_COMMON,
        "ioprio_set": 30,
        "ioprio_get": 31,
        "mknodat": 33,
        "mkdirat": 34,
        "unlinkat": 35,
        "symlinkat": 36,
        "umount2": 39,
        "mount": 40,
        "pivot_root": 41,
        "chdir": 49,
        "fchdir": 50,
        "openat": 56,
        "close": 57,
        "write": 64,
        "ppoll": 73,
        "capset": 91,
        "unshare": 97,
        "rt_sigprocmask": 135,
        "ptrace": 117,
        "add_key": 217,
        "keyctl": 219,
        "prctl": 167,
        "clone": 220,
        "setns": 268,
        "kcmp": 272,
        "sched_setattr": 274,
        "sched_getattr": 275,
        "seccomp": 277,
    },
}

AT_FDCWD = -100
_ENOSYS = 38
_ARGUMENTS = 6


def number_of(machine: str, name: str) -> int:
    """Return the number of a call on a machine.  Raises KeyError for an unknown one."""
    return _NUMBERS[machine][name]


class Kernel:
    """Makes system calls.  A `Recording` takes its place to record them.

    `without` names calls that fail as on a kernel that lacks them.  `ctypes` is loaded with the first object
    of this class.
    """

    def __init__(self, without: Iterable[str] = ()) -> None:
        import ctypes

        self.without = frozenset(without)
        self.known: dict[str, int] = {}  # what was found out about this kernel
        self.programs: dict[str, bytes] = {}  # filter programs made so far
        self.machine = os.uname().machine
        self._numbers = _NUMBERS.get(self.machine, {})
        self._get_errno = ctypes.get_errno
        # PyDLL keeps the interpreter lock, so after a raw clone the child need not take it again.
        self.syscall = ctypes.PyDLL(None, use_errno=True).syscall
        self.syscall.restype = ctypes.c_long
        # A pointer takes addresses, bytes, buffers and numbers alike, and fills a whole register: an `int`
        # would leave the upper half of it undefined.
        self.syscall.argtypes = [ctypes.c_void_p] * (1 + _ARGUMENTS)

    def call(self, name: str, *arguments: object) -> int:
        """Make a system call with numbers, bytes, None or ctypes objects; return its result.

        Raises OSError, with the call as its file name.
        """
        result = int(self.syscall(*self.arguments(name, arguments)))
        if result < 0:
            raise self.failure(name)
        return result

    def attempt(self, name: str, *arguments: object) -> None:
        """Make a system call whose failure does not matter."""
        try:
            self.call(name, *arguments)
        except OSError:
            pass

    def run(self, act: Callable[..., object], *given: object) -> None:
        """Call a function at this point of a sequence of calls; it may raise OSError."""
        act(*given)

    def plain(self) -> Kernel:
        """Return the kernel itself, for functions that `run` calls."""
        return self

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def arguments(self, name: str, arguments: Sequence[object]) -> tuple[object, ...]:
        """Return the arguments for `syscall`.  Raises OSError ENOSYS for a call that this kernel lacks."""
        number = self._numbers.get(name)
        if number is None or name in self.without:
            raise OSError(_ENOSYS, os.strerror(_ENOSYS), name)
        return (number, *arguments, *[0] * (_ARGUMENTS - len(arguments)))

    def failure(self, name: str) -> OSError:
        """Return the error of the last call, which was `name`."""
        error = self._get_errno()
        return OSError(error, os.strerror(error), name)
