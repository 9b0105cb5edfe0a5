"""What to start, checked before anything is made for it, and the client's error when it did not start."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from execserver.core import spawn_errors
from execserver.core.spawn_errors import CandidateFault, LookupRefusal
from execserver.protocol.errors import InvalidParams, InvalidRequest, RpcError, os_error_text
from execserver.zygote import lookup
from execserver.zygote.records import (
    BACK_END_NATIVE,
    SECCOMP_NONE,
    STAGE_CWD,
    STAGE_LOOKUP,
    STAGE_VIEW,
    Failed,
)

_STRINGS_BYTES = 8 * 1024 * 1024  # above what any kernel passes to a new program (6 MiB)

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


class Confinement(NamedTuple):
    """What a sandbox context comes to for one process; the defaults are those of one that restricts nothing.

    `plan` is the encoded view that `back_end` makes, empty where files are not restricted; `seccomp` is the
    filter then.  `refusal` is the text that a child prints instead, before it exits with `refusal_status`.
    With `own_init` the program runs under an init of its own.
    """

    plan: bytes = b""
    seccomp: int = SECCOMP_NONE
    back_end: int = BACK_END_NATIVE
    own_init: bool = False
    refusal: str = ""
    refusal_status: int = 1


class Watch(NamedTuple):
    """How a supervised start is watched: an encoded supervision, and the supervisor's end of the socket for
    its questions, which stays with whoever made it.
    """

    supervision: bytes
    questions_fd: int


class SpawnSpec(NamedTuple):
    """What to start.

    `env` as a mapping is passed on in the order of its names, as pairs in their own order.  `pipe_stdin` has
    no effect on a tty, `size` (rows, columns) only there.  `confinement` is None without a sandbox context.
    With a `watch`, on pipes only, the child is a supervisor that stands for the program.
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


def environment_entries(spec: SpawnSpec) -> list[bytes]:
    """Return the environment as the kernel takes it.

    Raises InternalError for what can be refused beforehand: no program, a NUL byte, more than any exec takes.
    """
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


def worker_error(failed: Failed) -> RpcError:
    """Return the client's error for a file worker that the zygote did not start."""
    if failed.stage != STAGE_VIEW:
        return spawn_errors.os_failure(failed.errno)
    why = b" ".join(failed.details).decode("utf-8", "replace")
    return InvalidRequest(f"failed to prepare fs sandbox: {why}")


def confinement_fields(spec: SpawnSpec) -> tuple[bytes, bytes, int, int, bytes]:
    """Return the last fields of a start request: plan, refusal, filter, back end and supervision."""
    what = spec.confinement or Confinement()
    refusal = b"%d %b" % (what.refusal_status, what.refusal.encode()) if what.refusal else b""
    supervision = b"" if spec.watch is None else spec.watch.supervision
    return what.plan, refusal, what.seccomp, what.back_end, supervision


def unstarted_program(spec: SpawnSpec, failed: Failed) -> Confinement | None:
    """Return the refusal that stands for a program that cannot be run; None for any other failure.

    With a sandbox context that is no failed start: a child says so and exits (wire contract, section 8.7).
    """
    confinement = spec.confinement
    if confinement is None or confinement.plan or failed.stage in (STAGE_CWD, STAGE_VIEW):
        return None
    number = failed.errno if spec.argv[0] else errno.ENOENT
    if number not in _NO_PROGRAM:
        return None
    program = spec.argv[0].decode("utf-8", "replace")
    text = f"codex-linux-sandbox: Failed to execvp {program}: {os_error_text(number)}"
    return confinement._replace(refusal=text, refusal_status=101)


def start_error(failed: Failed) -> RpcError:
    """Return the client's error for the zygote's refusal (wire contract, sections 8.1 and 8.7)."""
    if failed.stage == STAGE_VIEW:
        reason = b" ".join(failed.details).decode("utf-8", "replace") or os_error_text(failed.errno)
        return InvalidParams(f"failed to prepare process sandbox: {reason}")
    if failed.stage != STAGE_LOOKUP:
        return spawn_errors.os_failure(failed.errno)
    program, path, *notes = [*failed.details, b""]
    candidates = tuple((_FAULTS[note[:1]], note[1:]) for note in notes if note)
    return spawn_errors.lookup_refused(_REFUSALS[failed.reason], program, failed.errno, path, candidates)
