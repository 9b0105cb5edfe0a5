"""The rules of shell snapshots: when one is used, what it holds, and the command it makes (section 8.1).

Pure: the service captures.  A snapshot is the state that a shell's start-up files leave: functions, aliases,
options and exported variables.  A command with one runs without start-up files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from execserver.core.shell_scripts import (
    END,
    EXPORTS,
    PART_BYTES,
    SHELLS,
    STATE_VARIABLE,
    capture_script,
    restoring_script,
    state_script,
)
from execserver.protocol.errors import InvalidParams
from execserver.protocol.process import ShellSnapshotRequest

MAX_STATE_BYTES = 512 * 1024
_MAX_SCOPE_BYTES = 256
_LOGIN_FLAGS = "-lc"
_WORDS = 3  # the shell, its flags, the command
_IDENTIFIER = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
_OF_THE_SHELL = frozenset({b"PWD", b"OLDPWD", b"_"})  # each shell sets them anew


class Snapshot(NamedTuple):
    """The state of a shell: the script that restores it, and its exported variables."""

    family: str
    state: bytes
    exports: dict[bytes, bytes]

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command with its state restored first, in place of the start-up files."""
        shell = SHELLS[self.family]
        return [argv[0], shell.flags, restoring_script(shell, len(self._parts()), argv[2]), *argv[3:]]

    def variables(self) -> dict[bytes, bytes]:
        """Return the variables that `command` reads the state from, and unsets."""
        return {STATE_VARIABLE + b"%d" % number: part for number, part in enumerate(self._parts())}

    def _parts(self) -> list[bytes]:
        return [self.state[at : at + PART_BYTES] for at in range(0, len(self.state), PART_BYTES)]


def is_wanted(argv: Sequence[str], request: ShellSnapshotRequest) -> bool:
    """Tell whether a start is a login command of the request's shell.

    Raises InvalidParams for a request that cannot be met.
    """
    if not 0 < len(request.scope_id.encode("utf-8", "surrogatepass")) <= _MAX_SCOPE_BYTES:
        raise InvalidParams("shell snapshot scope must be non-empty and at most 256 bytes")
    if len(argv) < _WORDS or argv[0] != request.shell.path or argv[1] != _LOGIN_FLAGS:
        return False
    if request.shell.name not in SHELLS:
        raise InvalidParams(f"shell snapshots are unsupported for shell `{request.shell.name}`")
    return True


def capture_command(request: ShellSnapshotRequest, mark: str) -> list[str]:
    """Return the command that prints the state of a shell which is login shell and interactive."""
    shell = SHELLS[request.shell.name]
    return [request.shell.path, "-lic", capture_script(shell, mark)]


def is_complete(output: bytes, mark: str) -> bool:
    """Tell whether a capture has printed all."""
    return f"\n{mark}:{END}\n".encode() in output[-PART_BYTES:]


def snapshot_of(family: str, output: bytes, mark: str, given: Mapping[bytes, bytes]) -> Snapshot | None:
    """Return what a capture has printed; None if it is incomplete or too large.

    Variables of `given`, those of the request that caused the capture, are the shell's only if it changed
    them.
    """
    sections = _sections(output, mark)
    if END not in sections or EXPORTS not in sections:
        return None
    state = state_script(family, sections)
    exports = {
        name: value
        for name, value in _variables(sections[EXPORTS])
        if _IDENTIFIER.fullmatch(name) and name not in _OF_THE_SHELL and given.get(name) != value
    }
    size = len(state) + sum(len(name) + len(value) for name, value in exports.items())
    return Snapshot(family, state, exports) if size <= MAX_STATE_BYTES and b"\0" not in state else None


def _sections(output: bytes, mark: str) -> dict[str, bytes]:
    _, *parts = output.split(f"\n{mark}:".encode())
    named = (part.partition(b"\n") for part in parts)
    return {name.decode("latin-1"): text for name, _, text in named}


def _variables(text: bytes) -> list[tuple[bytes, bytes]]:
    pairs = (entry.partition(b"=") for entry in text.split(b"\0"))
    return [(name, value) for name, equals, value in pairs if equals]
