"""What to start, checked before anything is made for it, and the client's error when it did not start."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from execserver.core import spawn_errors
from execserver.core.spawn_errors import CandidateFault, LookupRefusal
from execserver.protocol.errors import InternalError, InvalidRequest, RpcError
from execserver.zygote import lookup
from execserver.zygote.records import STAGE_LOOKUP, STAGE_VIEW, Failed

_STRINGS_BYTES = 8 * 1024 * 1024  # above what any kernel passes to a new program (6 MiB)

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


class SpawnSpec(NamedTuple):
    """What to start.

    `env` as a mapping is passed on in the order of its names, as pairs in their own order.  `pipe_stdin` has
    no effect on a tty, `size` (rows, columns) only there.
    """

    argv: Sequence[bytes]
    env: Mapping[bytes, bytes] | Sequence[tuple[bytes, bytes]]
    cwd: bytes
    arg0: bytes | None = None
    tty: bool = False
    pipe_stdin: bool = False
    size: tuple[int, int] = (24, 80)


def environment_entries(spec: SpawnSpec) -> list[bytes]:
    """Return the environment as the kernel takes it.

    Raises InternalError for what can be refused beforehand: no program, a NUL byte, more than any exec takes.
    """
    if not spec.argv[0]:
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


def start_error(failed: Failed) -> InternalError:
    """Return the client's error for the zygote's refusal (wire contract, section 8.1)."""
    if failed.stage != STAGE_LOOKUP:
        return spawn_errors.os_failure(failed.errno)
    program, path, *notes = [*failed.details, b""]
    candidates = tuple((_FAULTS[note[:1]], note[1:]) for note in notes if note)
    return spawn_errors.lookup_refused(_REFUSALS[failed.reason], program, failed.errno, path, candidates)
