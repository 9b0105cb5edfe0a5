"""The interface of exec callers: who wants to run a program, and what the supervisor can do about it.

There are two kinds of callers: a process that the kernel holds in its execve, and a wrapper at the other end
of a socket.  An exec source makes a `Caller` and an `Execution` and passes both to the exec broker.  The
broker calls exactly one of `run`, `deny`, `exit`, `fail` and `finish`, or none if the caller is gone before.
Nothing here blocks.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.zygote.supervision.inheritance import Inherited

# What `Caller.look` finds at the path of a program.
NOTHING = 0  # nothing that can be executed, from outside: a wrapper tries it, and tells what the kernel says
OUTSIDE = 1  # the same file as at that path outside
INSIDE = 2  # a file, but not the one at that path outside, so it can only run inside
GONE = 3  # the caller has ended, and everything of it is closed


def version_of(file: bytes) -> tuple[int, ...]:
    """Return what differs between two files, and for one file before and after a write; () if it is gone."""
    try:
        return version_in(os.stat(file))
    except OSError:
        return ()


def version_in(found: os.stat_result) -> tuple[int, ...]:
    """Return the same of a file whose stat result is known."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Execution:
    """One program that a caller wants to run: `file` is its absolute path, `argv` includes argv[0].

    `workdir` may be empty until `look` was called.
    """

    __slots__ = ("argv", "file", "workdir")

    def __init__(self, file: bytes, argv: Sequence[bytes], workdir: bytes) -> None:
        self.file = file
        self.argv = argv
        self.workdir = workdir


class Means:
    """What a program gets that is started outside in place of its caller.

    `descriptors` maps the program's descriptor numbers to descriptors of this process; `close` closes these
    and `workdir`, a descriptor of its folder.  `inherited` is None where all of it stays the supervisor's.
    """

    __slots__ = ("descriptors", "env", "inherited", "workdir")

    def __init__(
        self,
        env: Sequence[bytes],
        descriptors: dict[int, int],
        workdir: int,
        inherited: Inherited | None = None,
    ) -> None:
        self.env = env
        self.descriptors = descriptors
        self.workdir = workdir
        self.inherited = inherited

    def close(self) -> None:
        """Close all descriptors; to be called once."""
        for descriptor in (*self.descriptors.values(), self.workdir):
            os.close(descriptor)
        self.descriptors = {}


class Start:
    """What the exec broker hears of a caller whose program it wants to start outside.

    `ready` says once that the program may be started, and that the caller goes on as it is told then.  A
    caller that is followed otherwise than by its `alive_fd` is `traced` until its end, which `lost` reports
    with the signal that killed it; `interrupted` takes that back, and `ready` may still come.
    """

    def ready(self) -> None:
        """Start the program, or do not."""
        raise NotImplementedError

    def traced(self) -> None:
        """Watch the `alive_fd` no longer."""
        raise NotImplementedError

    def interrupted(self) -> None:
        """Watch the `alive_fd` again."""
        raise NotImplementedError

    def lost(self, signum: int) -> None:
        """The caller is gone; 0 for no signal."""
        raise NotImplementedError


class Caller:
    """One process that waits for a decision.

    `alive_fd` becomes readable once the process is gone; this object closes it.  Each of `run`, `deny`,
    `exit`, `fail` and `finish` ends the object: it closes everything and never raises.
    """

    alive_fd: int

    def version(self, file: bytes) -> tuple[int, ...]:
        """Return what `version_of` says of the program, as far as known from the look at it."""
        return version_of(file)

    def look(self, file: bytes) -> int:
        """Return what is at the path: NOTHING, OUTSIDE, INSIDE or GONE; `alive_fd` is set afterwards."""
        # What a wrapper asks for in its own words can only be looked at from outside.
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
        """Make it exit with a code, that of the program that ran in its place."""
        raise NotImplementedError

    def fail(self, number: int) -> None:
        """Answer its exec with an errno: the program cannot be executed."""
        raise NotImplementedError

    def collect(self, then: Callable[[Means | None], None]) -> None:
        """Get what the program needs outside, and call `then` with it, now or later.

        With None it cannot run outside as it would inside, and the broker lets it run inside.  If the caller
        ends before, `then` is not called.
        """
        raise NotImplementedError

    def halt(self, start: Start) -> None:
        """See to it that the caller cannot go on by itself; then `start.ready`, which may come at once.

        After that, besides `run` and `fail`, there is `replaced`.
        """
        start.ready()

    def starting(self) -> None:
        """Know that the program is about to start: what signals come from now on are meant for it."""

    def replaced(self, program: int) -> None:
        """Take the pid of the program that runs in its place from now on."""

    def program_stopped(self, is_stopped: bool) -> None:
        """Be stopped, or continued, as that program is."""

    def finish(self, status: int) -> None:
        """End as that program has ended, by its wait status."""
        self.exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))

    def gone(self) -> int:
        """Close everything of a caller that has ended; return the signal that killed it, 0 if unknown."""
        raise NotImplementedError
