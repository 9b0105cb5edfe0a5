"""The command of a start: its stdio, and which program its name means in the sandbox root."""

from __future__ import annotations

import errno
import os

from execserver.protocol.errors import os_error_text
from execserver.resources.rlimits import ChildLimits
from execserver.zygote.confine.child import open_null
from execserver.zygote.libc import c_strings
from execserver.zygote.lookup import env_value, pipe_candidates
from execserver.zygote.spawn import SpawnFailure, first_that_runs, with_shell
from execserver.zygote.stages import STAGE_EXEC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.zygote.records import SpawnRequest

    # Starts the program at a path with arguments and environment; returns its pid, or never.
    StartProgram = Callable[[bytes, Sequence[bytes], Sequence[bytes]], int]

_UNLIMITED = ChildLimits()
EXIT_NOT_EXECUTED = 101  # the wire contract's status when the program is not there in the sandbox root
_NAME = "codex-linux-sandbox"  # the program that the contract's messages come from


class Command:
    """What to start.

    `stdio` are three descriptors; the first may be None for the null device.  If `slave`, the path of a pty's
    slave, is set, that terminal is stdio and the controlling terminal instead.  `ready` is what `make_ready`
    leaves: the files to try, argv and environment.  Who starts it applies the `limits` last.
    """

    __slots__ = ("arg0", "argv", "cwd", "env", "limits", "ready", "slave", "stdio")

    def __init__(
        self,
        argv: Sequence[bytes],
        env: Sequence[bytes],
        cwd: bytes,
        arg0: bytes | None = None,
        stdio: Sequence[int | None] = (0, 1, 2),
        slave: bytes = b"",
        limits: ChildLimits = _UNLIMITED,
    ) -> None:
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.arg0 = arg0
        self.stdio = stdio
        self.slave = slave
        self.limits = limits
        self.ready: tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]] | None = None

    def make_ready(self) -> None:
        """Make what the C library takes, before the fork that uses it."""
        argv = self.argv if self.arg0 is None else [self.arg0, *self.argv[1:]]
        try:
            candidates = pipe_candidates(self.argv[0], env_value(self.env, b"PATH"))
        except OSError:
            return  # a name too long to exist, which `start_program` tells
        # `c_strings` returns such arrays as they are, so they can be passed in place of the sequences.
        self.ready = candidates, c_strings(argv), c_strings(self.env)  # type: ignore[assignment]


def command_of(request: SpawnRequest, descriptors: Sequence[int]) -> Command:
    """Return the command of a request, on the descriptors that came with it.

    Raises SpawnFailure if some of them are lost.
    """
    if request.slave:
        env = with_shell(request.env)
        return Command(
            request.argv, env, request.cwd, request.arg0, slave=request.slave, limits=request.limits
        )
    if len(descriptors) != 2 + request.pipe_stdin:
        # The kernel drops descriptors of a message for which this process has no free number.
        raise SpawnFailure(STAGE_EXEC, errno.EMFILE)
    stdin = descriptors[0] if request.pipe_stdin else None
    stdio = (stdin, *descriptors[-2:])
    return Command(request.argv, request.env, request.cwd, request.arg0, stdio, limits=request.limits)


def take_stdio(command: Command) -> None:
    """Put the command's stdio, or its terminal, in place; the calling process leads its session."""
    if command.slave:
        # No O_NOCTTY: in the new session this open is what makes it the controlling terminal.
        terminal = os.open(command.slave, os.O_RDWR)
        stdio: Sequence[int | None] = (terminal, terminal, terminal)
    else:
        stdio = command.stdio
    for number, descriptor in enumerate(stdio):
        if descriptor is None:
            open_null(number)
        elif descriptor == number:
            # dup2 onto itself would leave it close-on-exec.
            os.set_inheritable(number, True)
        else:
            os.dup2(descriptor, number)


def start_program(command: Command, env: Sequence[bytes], start: StartProgram) -> int:
    """Start the first file that execvp would; return what `start` returns.

    If there is none, print why to stderr and return minus the exit status for that.
    """
    program = command.argv[0]
    argv = command.argv if command.arg0 is None else [command.arg0, *command.argv[1:]]
    try:
        # An environment that was changed since, for a proxy, has other strings, and perhaps another PATH.
        if command.ready is not None and env is command.env:
            candidates, *strings = command.ready
            return first_that_runs(candidates, lambda path: start(path, *strings))
        candidates = pipe_candidates(program, env_value(env, b"PATH"))
        return first_that_runs(candidates, lambda path: start(path, argv, env))
    except OSError as error:
        complain(f"Failed to execvp {os.fsdecode(program)}: {os_error_text(error.errno or errno.EIO)}")
        return -EXIT_NOT_EXECUTED


def complain(text: str) -> None:
    """Write a message in the contract's form to stderr."""
    try:
        os.write(2, os.fsencode(f"{_NAME}: {text}\n"))
    except OSError:
        pass  # nobody reads it
