"""Who wants to run a program, and what the supervisor can do about it.

There are two kinds of callers: a process trapped by the kernel in its execve, and a wrapper at the other end
of a socket.  A source makes a `Caller` and an `Execution` and hands both to the desk; the desk calls exactly
one of `run`, `deny`, `exit` and `fail`, or none if the caller is gone before.  Nothing here blocks.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# What `Caller.look` finds at the path of a program.
NOTHING = 0  # nothing that can be executed: the caller finds out by itself, as a search through PATH must
OUTSIDE = 1  # the same file as outside
INSIDE = 2  # a file, but not the one that stands there outside: it can only run inside
GONE = 3  # the caller is no more, and has closed everything


class Execution:
    """One program somebody wants to run: `file` is its absolute path, `argv` includes argv[0].

    `workdir` may be empty until the caller's `look`.
    """

    __slots__ = ("argv", "file", "workdir")

    def __init__(self, file: bytes, argv: Sequence[bytes], workdir: bytes) -> None:
        self.file = file
        self.argv = argv
        self.workdir = workdir


class Means:
    """What a program gets that is started outside in place of its caller.

    `descriptors` maps the numbers it must find to descriptors of this process, which `close` closes along
    with `workdir` (a descriptor of its folder).  `ignored` is a mask of ignored signals, bit N-1 for signal
    N. `umask` and `nice` are None where they stay the supervisor's.
    """

    __slots__ = ("descriptors", "env", "ignored", "nice", "umask", "workdir")

    def __init__(
        self,
        env: Sequence[bytes],
        descriptors: dict[int, int],
        workdir: int,
        ignored: int = 0,
        umask: int | None = None,
        nice: int | None = None,
    ) -> None:
        self.env = env
        self.descriptors = descriptors
        self.workdir = workdir
        self.ignored = ignored
        self.umask = umask
        self.nice = nice

    def close(self) -> None:
        """Close what came along."""
        for descriptor in (*self.descriptors.values(), self.workdir):
            os.close(descriptor)
        self.descriptors = {}


class Caller:
    """One process that waits for a decision.

    `alive_fd` becomes readable once it is gone, and is the caller's to close.  Each of `run`, `deny`, `exit`
    and `fail` is the end of it: it closes everything and never raises.
    """

    alive_fd: int

    def look(self, file: bytes) -> int:
        """Look what is at the path: NOTHING, OUTSIDE, INSIDE or GONE.  Has `alive_fd` set afterwards."""
        try:
            found = os.stat(file)
        except (OSError, ValueError):
            return NOTHING
        return OUTSIDE if stat.S_ISREG(found.st_mode) and found.st_mode & 0o111 else NOTHING

    def run(self) -> None:
        """Let it run the program where it is."""
        raise NotImplementedError

    def deny(self, text: str) -> None:
        """Write a text and a newline to its stderr, and make it exit with 1."""
        raise NotImplementedError

    def exit(self, code: int) -> None:
        """Make it exit with a code, as the program did that ran in its place."""
        raise NotImplementedError

    def fail(self, number: int) -> None:
        """Answer its attempt with an errno: the program cannot be executed."""
        raise NotImplementedError

    def collect(self, then: Callable[[Means | None], None]) -> None:
        """Get what the program needs outside, and call `then` with it, now or later.

        None means that it cannot run there as it would inside: the desk lets it run inside.  If the caller
        goes away before, `then` is not called.
        """
        raise NotImplementedError

    def gone(self) -> int:
        """Return the signal that killed it, 0 if that is not known; it is gone, and everything is closed."""
        raise NotImplementedError
