"""The tool `shell`: its description for clients, its arguments, its result and its errors.

Schema, error texts and the shape of the result are those of the shell tool contract.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from execserver.protocol.errors import InvalidParams, RpcError
from execserver.protocol.record import U64_MAX

NAME = "shell"
INTERNAL_ERROR = -32603

_NANOS = 1_000_000_000
_BAD_ARGUMENTS = "failed to deserialize parameters"
_ABSENT = msgspec.Raw()
_NULL = msgspec.Raw(b"null")
_SHOWN_CHARACTERS = 200  # of a value repeated in an error text

DESCRIPTION: dict[str, object] = {
    "name": NAME,
    "description": (
        "Runs a shell command and returns its output. You MUST provide the workdir as an absolute path."
    ),
    "inputSchema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ExecParams",
        "type": "object",
        "properties": {
            "command": {"description": "The bash string to execute.", "type": "string"},
            "workdir": {
                "description": ("The working directory to execute the command in. Must be an absolute path."),
                "type": "string",
            },
            "timeout_ms": {
                "description": "The timeout for the command in milliseconds.",
                "type": "integer",
                "format": "uint64",
                "minimum": 0,
                "nullable": True,
            },
            "login": {
                "description": "Launch Bash with -lc instead of -c: defaults to true.",
                "type": "boolean",
                "nullable": True,
            },
        },
        "required": ["command", "workdir"],
    },
}


class ToolError(RpcError):
    """The error of a call without a result; `data`, if given, goes to the client."""

    def __init__(self, code: int, message: str, data: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class ExecParams(NamedTuple):
    """What to run.  `timeout_ms` None means the default limit; only `login=False` means no login shell."""

    command: str
    workdir: str
    timeout_ms: int | None = None
    login: bool | None = None


class ExecResult(NamedTuple):
    """The result of a call: the shell's exit code, its output, and its wall time, open prompts included."""

    exit_code: int
    output: str
    duration_ns: int
    timed_out: bool = False

    def to_json(self) -> bytes:
        """Return the result of `tools/call`: one text that contains the four fields as JSON."""
        secs, nanos = divmod(max(self.duration_ns, 0), _NANOS)
        fields = {
            "exit_code": self.exit_code,
            "output": self.output.encode("utf-8", "replace").decode(),
            "duration": {"secs": secs, "nanos": nanos},
            "timed_out": self.timed_out,
        }
        text = msgspec.json.encode(fields).decode()
        return msgspec.json.encode({"content": [{"type": "text", "text": text}], "isError": False})


class _Arguments(msgspec.Struct):
    command: msgspec.Raw = _ABSENT
    workdir: msgspec.Raw = _ABSENT
    timeout_ms: msgspec.Raw = _NULL
    login: msgspec.Raw = _NULL


def read_arguments(arguments: msgspec.Raw | None) -> ExecParams:
    """Return the arguments of a call, given as JSON text; unknown ones are ignored.  Raises InvalidParams."""
    # Each value stays JSON text at first, so that errors come in the contract's order and words.
    given = _Arguments()
    if arguments is not None:
        try:
            given = msgspec.json.decode(arguments, type=_Arguments)
        except msgspec.ValidationError:
            raise _bad(f"invalid type: {_kind_of(_outline(arguments))}, expected a map") from None
    command = _text(given.command) if given.command else None
    workdir = _text(given.workdir) if given.workdir else None
    timeout_ms, login = _milliseconds(given.timeout_ms), _flag(given.login)
    if command is None or workdir is None:
        raise _bad(f"missing field `{'command' if command is None else 'workdir'}`")
    return ExecParams(command, workdir, timeout_ms, login)


def _outline(text: msgspec.Raw) -> object:
    """Decode a value, but not the content of an array or object: no argument is one, however large it is."""
    kind = bytes(text)[:1]
    if kind in (b"[", b"{"):
        return [] if kind == b"[" else {}
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise _bad("number out of range") from None


def _text(text: msgspec.Raw) -> str:
    value = _outline(text)
    if not isinstance(value, str):
        raise _bad(f"invalid type: {_kind_of(value)}, expected a string")
    return value


def _milliseconds(text: msgspec.Raw) -> int | None:
    value = _outline(text)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value > U64_MAX:
        raise _bad(f"invalid type: {_kind_of(value)}, expected u64")
    if value < 0:
        raise _bad(f"invalid value: {_kind_of(value)}, expected u64")
    return value


def _flag(text: msgspec.Raw) -> bool | None:
    value = _outline(text)
    if value is not None and not isinstance(value, bool):
        raise _bad(f"invalid type: {_kind_of(value)}, expected a boolean")
    return value


def _bad(reason: str) -> InvalidParams:
    return InvalidParams(f"{_BAD_ARGUMENTS}: {reason}")


def _kind_of(value: object) -> str:
    """Name the kind of a decoded JSON value as the contract does, e.g. ``integer `5` ``."""
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, int) and value <= U64_MAX:
        return f"integer `{value}`"
    if isinstance(value, int | float):
        return f"floating point `{float(value)}`"
    if isinstance(value, str):
        shown = value if len(value) <= _SHOWN_CHARACTERS else f"{value[:_SHOWN_CHARACTERS]}…"
        return f"string {msgspec.json.encode(shown).decode()}"
    if value is None:
        return "null"
    return "map" if isinstance(value, dict) else "sequence"
