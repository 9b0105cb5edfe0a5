"""A start request: its checks before anything is made for it, and the client's error if the start fails."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from execserver.core import spawn_errors
from execserver.core.spawn_errors import CandidateFault, LookupRefusal
from execserver.protocol.errors import RpcError, os_error_text
from execserver.resources.rlimits import ChildLimits
from execserver.services.confinement.current_plan import SandboxNotMade
from execserver.zygote import lookup
from execserver.zygote.confinement import UNCONFINED, Confinement, refused
from execserver.zygote.records import Failed
from execserver.zygote.stages import STAGE_CWD, STAGE_LOOKUP, STAGE_ROOT

_STRINGS_BYTES = 8 * 1024 * 1024  # above what any kernel passes to a new program (6 MiB)

# The errors of `execve` about the program itself, not about resources.
_NO_PROGRAM = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC, errno.ELOOP, errno.ENAMETOOLONG)

_REFUSALS = {
    lookup.NOT_IN_PATH: LookupRefusal.NOT_IN_PATH,
    lookup.NO_PATH: LookupRefusal.NO_PATH,
    lookup.MISSING: LookupRefusal.MISSING,
    lookup.MISSING_RELATIVE: LookupRefusal.MISSING_RELATIVE,
    lookup.NOT_EXECUTABLE: LookupRefusal.NOT_EXECUTABLE,
    lookup.NOT_EXECUTABLE_RELATIVE: LookupRefusal.NOT_EXECUTABLE_RELATIVE,
    lookup.IS_DIRECTORY: LookupRefusal.IS_DIRECTORY,
}
_FAULTS = {
    lookup.NOTE_DIRECTORY: CandidateFault.DIRECTORY,
    lookup.NOTE_NOT_EXECUTABLE: CandidateFault.NOT_EXECUTABLE,
}


class Watch(NamedTuple):
    """The supervision of a start: its encoding, and the supervisor's end of the socket for approval prompts.

    Whoever made the socket keeps and closes it.
    """

    supervision: bytes
    questions_fd: int


class StartLimits(NamedTuple):
    """What a child takes on, and the control group that it begins in (-1: none), whose owner closes it."""

    of_child: ChildLimits
    group_fd: int


class SpawnSpec(NamedTuple):
    """What to start.

    `env` as a mapping is passed on sorted by name, as pairs in their own order.  `pipe_stdin` has no effect
    on a tty, `size` (rows, columns) only there.  `confinement` is None without a sandbox context.  With a
    `watch`, on pipes only, the child is an exec supervisor in place of the program; it has no `limits`.
    Through `listeners_fd`, if it is one, a sandbox with a network of its own passes what listens at the ports
    of its proxies.
    """

    argv: Sequence[bytes]
    env: Mapping[bytes, bytes] | Sequence[tuple[bytes, bytes]]
    cwd: bytes
    arg0: bytes | None = None
    tty: bool = False
    pipe_stdin: bool = False
    size: tuple[int, int] = (24, 80)
    confinement: Confinement | None = None
    watch: Watch | None = None
    listeners_fd: int = -1
    limits: StartLimits | None = None

    @property
    def listens(self) -> bool:
        """True when there is a sandbox that could pass listening sockets."""
        return self.listeners_fd >= 0 and self.confinement is not None and bool(self.confinement.plan)


def environment_entries(spec: SpawnSpec) -> list[bytes]:
    """Return the environment as `NAME=value` entries, as the kernel takes it.

    Raises InternalError for what can be refused beforehand: no program, a NUL byte, more than any exec takes.
    """
    # With a sandbox context an empty program is not a failed start: see `unstarted_program`.
    if not spec.argv[0] and spec.confinement is None:
        raise spawn_errors.missing_program(spec.tty)
    env = sorted(spec.env.items()) if isinstance(spec.env, Mapping) else spec.env
    entries = [name + b"=" + value for name, value in env]
    size = 0
    for string in [*spec.argv, *entries, spec.arg0 or b"", spec.cwd]:
        if b"\0" in string:
            raise spawn_errors.nul_byte()
        size += len(string) + 1
    if size > _STRINGS_BYTES:
        raise spawn_errors.os_failure(errno.E2BIG)
    return entries


def check_sandbox(failed: Failed) -> None:
    """Raise SandboxNotMade if the start failed because the sandbox could not be made."""
    if failed.stage == STAGE_ROOT:
        reason = b" ".join(failed.details).decode("utf-8", "replace")
        raise SandboxNotMade(reason or os_error_text(failed.errno))


def confinement_fields(spec: SpawnSpec) -> tuple[Confinement, bytes, bool]:
    """Return the last fields of a start request: confinement, encoded supervision, whether it listens."""
    supervision = b"" if spec.watch is None else spec.watch.supervision
    return spec.confinement or UNCONFINED, supervision, spec.listens


def unstarted_program(spec: SpawnSpec, failed: Failed) -> Confinement | None:
    """Return the refusal to start in place of a program that cannot be executed; None for other failures.

    With a sandbox context this is not a failed start: a child prints the refusal message and exits with 101
    (wire contract, section 8.7).
    """
    confinement = spec.confinement
    # With a plan, the process in the sandbox root prints this message itself and exits with 101.
    if confinement is None or confinement.plan or failed.stage in (STAGE_CWD, STAGE_ROOT):
        return None
    number = failed.errno if spec.argv[0] else errno.ENOENT
    if number not in _NO_PROGRAM:
        return None
    program = spec.argv[0].decode("utf-8", "replace")
    return refused(f"codex-linux-sandbox: Failed to execvp {program}: {os_error_text(number)}", 101)


def start_error(failed: Failed) -> RpcError:
    """Return the client's error for a start that failed in the zygote (wire contract, sections 8.1, 8.7)."""
    if failed.stage != STAGE_LOOKUP:
        return spawn_errors.os_failure(failed.errno)
    program, path, *notes = [*failed.details, b""]
    candidates = tuple((_FAULTS[note[:1]], note[1:]) for note in notes if note)
    return spawn_errors.lookup_refused(_REFUSALS[failed.reason], program, failed.errno, path, candidates)
