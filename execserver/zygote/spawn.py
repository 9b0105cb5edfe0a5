"""One start, from request to pid, with the stage and errno of whatever prevented it.

The zygote has a single thread, so it changes into the child's cwd itself and back to `/` afterwards.  So the
error of a bad cwd differs from that of a bad program, and relative names resolve as the child will see them.
"""

from __future__ import annotations

import errno
import os
import time

from execserver.zygote.lookup import (
    LookupRefused,
    env_value,
    is_directory,
    passwd_entry,
    pipe_candidates,
    terminal_program,
)
from execserver.zygote.stages import STAGE_CWD, STAGE_EXEC, STAGE_LOOKUP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.zygote.libc import Libc
    from execserver.zygote.limited import LimitedStarts
    from execserver.zygote.records import SpawnRequest, WorkerRequest

_PASSWD_BYTES = 4 * 1024 * 1024
# After these errors execvp goes on to the next folder of PATH.  Every other one ends the search.
_TRY_NEXT = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)


class SpawnFailure(Exception):
    """Nothing runs: the stage, the errno, and for a refused lookup the reason and what it names."""

    def __init__(self, stage: int, number: int, reason: int = 0, details: Sequence[bytes] = ()) -> None:
        super().__init__(stage, number)
        self.stage = stage
        self.errno = number
        self.reason = reason
        self.details = details


def spawn(libc: Libc | LimitedStarts, request: SpawnRequest, descriptors: Sequence[int]) -> int:
    """Start the program and return its pid, or raise SpawnFailure; the descriptors stay the caller's."""
    check_deadline(request)
    if request.slave:
        return _spawn_on_terminal(libc, request)
    return _spawn_on_pipes(libc, request, descriptors)


def _spawn_on_pipes(libc: Libc | LimitedStarts, request: SpawnRequest, descriptors: Sequence[int]) -> int:
    if len(descriptors) != 2 + request.pipe_stdin:
        # The kernel drops descriptors of a message for which this process has no free number.
        raise SpawnFailure(STAGE_EXEC, errno.EMFILE)
    stdin = descriptors[0] if request.pipe_stdin else None
    outputs = descriptors[-2:]
    program = request.argv[0]
    # On pipes `arg0` is only shown to the program; the file is looked up by argv[0] of the request.
    argv = request.argv if request.arg0 is None else [request.arg0, *request.argv[1:]]
    enter_cwd(request.cwd)
    try:
        check_deadline(request)  # again: a cwd on a network file system may have hung
        return first_that_runs(
            pipe_candidates(program, env_value(request.env, b"PATH")),
            lambda path: libc.spawn_on_pipes(path, argv, request.env, stdin, outputs),
        )
    except OSError as error:
        raise _failure(STAGE_EXEC, error) from None
    finally:
        # The next request must not resolve names here, and nobody can unmount a folder that a process is in.
        os.chdir("/")


def first_that_runs(candidates: Sequence[bytes], start: Callable[[bytes], int]) -> int:
    """Start the first candidate that execs and return what `start` does.

    If there is none, raise the OSError that execvp would end with.
    """
    # Raised if there is no candidate: `pipe_candidates` leaves out elements of PATH that are too long.
    last = OSError(errno.ENOENT, "no element in PATH")
    refused: OSError | None = None
    for path in candidates:
        try:
            # A stat costs a fraction of a process that fails to exec, and fails with the same errno.
            os.stat(path)
            return start(path)
        except OSError as error:
            if error.errno not in _TRY_NEXT:
                raise
            last = error
            # As execvp has it: a file that may not be executed says more than one that is not there.
            refused = error if error.errno == errno.EACCES else refused
    raise refused or last


def _spawn_on_terminal(libc: Libc | LimitedStarts, request: SpawnRequest) -> int:
    env = with_shell(request.env)
    cwd = request.cwd
    # A habit of the reference server: without its folder a terminal starts in HOME, and nobody hears of it.
    if not is_directory(cwd):
        given = env_value(env, b"HOME")
        cwd = passwd_entry(_passwd_table(), os.getuid())[0] if given is None else given
    argv = request.argv if request.arg0 is None else [request.arg0, *request.argv[1:]]
    try:
        # Another habit of the reference server: on a terminal `arg0` also selects the file.
        path = terminal_program(argv[0], cwd, env_value(env, b"PATH"))
    except LookupRefused as refused:
        raise SpawnFailure(STAGE_LOOKUP, refused.errno, refused.reason, refused.details) from None
    enter_cwd(cwd)
    try:
        check_deadline(request)
        return libc.spawn_on_terminal(path, argv, env, request.slave)
    except OSError as error:
        raise _failure(STAGE_EXEC, error) from None
    finally:
        os.chdir("/")


def with_shell(env: Sequence[bytes]) -> Sequence[bytes]:
    """Return the environment of a terminal.

    The wire contract adds SHELL, the user's login shell, where a client gives none.  It goes to its place in
    the order of names, which is the order of `env`.
    """
    if env_value(env, b"SHELL") is not None:
        return env
    shell = passwd_entry(_passwd_table(), os.getuid())[1]
    entry = b"SHELL=" + (shell if os.access(shell, os.X_OK) else b"/bin/sh")
    before = [other for other in env if other < entry]
    return [*before, entry, *(other for other in env if other >= entry)]


def _passwd_table() -> bytes:
    """Return the text of /etc/passwd, empty if it cannot be read; name services could hang."""
    try:
        descriptor = os.open("/etc/passwd", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _PASSWD_BYTES)
    finally:
        os.close(descriptor)


def enter_cwd(cwd: bytes) -> None:
    """Change into a child's directory, or raise SpawnFailure; the caller changes back."""
    try:
        os.chdir(cwd)
    except OSError as error:
        raise _failure(STAGE_CWD, error) from None


def check_deadline(request: SpawnRequest | WorkerRequest) -> None:
    """Raise SpawnFailure when nobody waits any more, perhaps because the cwd hung."""
    # The server has answered its client by now.  A program that started would belong to nobody.
    if request.deadline_ns and time.monotonic_ns() > request.deadline_ns:
        raise SpawnFailure(STAGE_EXEC, errno.ETIMEDOUT)


def _failure(stage: int, error: OSError) -> SpawnFailure:
    return SpawnFailure(stage, error.errno or errno.EIO)
