"""The records between server and zygote: bytes to values and back, no I/O.

A record is a fixed head (kind, flags, kind of confinement, id, four numbers) and byte strings joined by NUL,
which no argument, environment entry or path can contain.  The id of a spawn request names the child from then
on: its exit record and later signal requests carry the same number, so a pid that the kernel reuses confuses
nobody.  `decode` raises RecordError for anything malformed.
"""

from __future__ import annotations

import struct

from execserver.resources.rlimits import RECORD_BYTES, ChildLimits, decode_limits, encode_limits
from execserver.zygote.confinement import (
    UNCONFINED,
    Confinement,
    decode_confinement,
    encode_confinement,
)
from execserver.zygote.stages import STAGES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_SPAWN, _STARTED, _FAILED, _SIGNAL, _SIGNALLED, _EXITED, _WORKER, _BEGUN, _RELEASE = range(1, 10)

_HAS_ARG0 = 1
_PIPE_STDIN = 2
_SUPERVISED = 4
_LISTENS = 8
_LIMITED = 16
_SURVIVORS = 1
UNLIMITED = ChildLimits()

# The padding puts the id at offset 8, where the channel reads it from any record without decoding it.
_HEAD = struct.Struct("<BBB5xQqqqq")
_SUPERVISION_BYTES = struct.Struct("<I")  # at the end of a supervised request


class RecordError(Exception):
    """The bytes are no record, or a value cannot be put into one."""


class Record:
    """What all records share: they compare by value and print with their fields."""

    __slots__: tuple[str, ...] = ()

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Record) and other._values() == self._values()

    def __hash__(self) -> int:
        return hash((type(self), repr(self)))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


class SpawnRequest(Record):
    """Start a program.

    `env` holds `name=value` entries in their final order.  `slave` is the path of the pty's slave, empty for
    pipes.  With pipes the datagram carries the child's ends: stdin if `pipe_stdin`, then stdout, then stderr.
    After `deadline_ns` of the monotonic clock (0: never) nobody waits, and nothing may be started.

    With an encoded `supervision`, an exec supervisor watches what the program starts; the socket for its
    approval prompts comes behind those.  If the request `listens`, the next descriptor is a socket, through
    which the sandbox passes what listens, in a network of its own, at the ports of its proxies.  With
    `limits`, which are not for supervised programs, the last one may be that of a control group.
    """

    __slots__ = (
        *("arg0", "argv", "confinement", "cwd", "deadline_ns", "env", "limits", "listens"),
        *("pipe_stdin", "request_id", "slave", "supervision"),
    )

    def __init__(
        self,
        request_id: int,
        argv: Sequence[bytes],
        env: Sequence[bytes],
        cwd: bytes,
        arg0: bytes | None = None,
        slave: bytes = b"",
        pipe_stdin: bool = False,
        deadline_ns: int = 0,
        confinement: Confinement = UNCONFINED,
        supervision: bytes = b"",
        listens: bool = False,
        limits: ChildLimits = UNLIMITED,
    ) -> None:
        self.request_id = request_id
        self.argv = list(argv)
        self.env = list(env)
        self.cwd = cwd
        self.arg0 = arg0
        self.slave = slave
        self.pipe_stdin = pipe_stdin
        self.deadline_ns = deadline_ns
        self.confinement = confinement
        self.supervision = supervision
        self.listens = listens
        self.limits = limits


class WorkerRequest(Record):
    """Start a file worker in a confinement with a sandbox plan; the datagram carries the worker's socket.

    The answer is that of a spawn; the worker's end is reported like that of any child.
    """

    __slots__ = ("confinement", "deadline_ns", "request_id")

    def __init__(self, request_id: int, confinement: Confinement, deadline_ns: int = 0) -> None:
        self.request_id = request_id
        self.confinement = confinement
        self.deadline_ns = deadline_ns


class Begun(Record):
    """A sandbox is being made: the answer to the request comes later, and other requests do not wait."""

    __slots__ = ("request_id",)

    def __init__(self, request_id: int) -> None:
        self.request_id = request_id


class Started(Record):
    """The program runs: posix_spawn returned after a successful exec, or the sandbox reported RUNNING."""

    __slots__ = ("pid", "request_id")

    def __init__(self, request_id: int, pid: int) -> None:
        self.request_id = request_id
        self.pid = pid


class Failed(Record):
    """Nothing was started: the stage, the errno, and for a refused lookup the reason and its details."""

    __slots__ = ("details", "errno", "reason", "request_id", "stage")

    def __init__(
        self, request_id: int, stage: int, errno: int, reason: int = 0, details: Sequence[bytes] = ()
    ) -> None:
        self.request_id = request_id
        self.stage = stage
        self.errno = errno
        self.reason = reason
        self.details = list(details)


class SignalRequest(Record):
    """Send a signal to the process group that the child leads or led."""

    __slots__ = ("child_id", "request_id", "signum")

    def __init__(self, request_id: int, child_id: int, signum: int) -> None:
        self.request_id = request_id
        self.child_id = child_id
        self.signum = signum


class Signalled(Record):
    """Whether the signal was delivered; if not, `errno` is that of a refusal, or 0 if the group is gone."""

    __slots__ = ("delivered", "errno", "request_id")

    def __init__(self, request_id: int, delivered: bool, errno: int = 0) -> None:
        self.request_id = request_id
        self.delivered = delivered
        self.errno = errno


class Exited(Record):
    """The child was reaped: its raw wait status, and whether others of its process group live on.

    `cpu_us` is the CPU time of it and of what it has reaped, `peak_kib` the most memory one of these had.
    """

    __slots__ = ("child_id", "cpu_us", "peak_kib", "pid", "status", "survivors")

    def __init__(
        self,
        child_id: int,
        pid: int,
        status: int,
        survivors: bool = False,
        cpu_us: int = 0,
        peak_kib: int = 0,
    ) -> None:
        self.child_id = child_id
        self.pid = pid
        self.status = status
        self.survivors = survivors
        self.cpu_us = cpu_us
        self.peak_kib = peak_kib


class Release(Record):
    """No start follows: the zygote is to end, without an answer, as soon as it has no child any more."""

    __slots__ = ("request_id",)

    def __init__(self, request_id: int = 0) -> None:
        self.request_id = request_id


def encode(record: Record) -> bytes:
    """Return the bytes of a record; a NUL or a number out of range raises RecordError."""
    try:
        if isinstance(record, SpawnRequest):
            return _encode_spawn(record)
        if isinstance(record, WorkerRequest):
            kind, confined = encode_confinement(record.confinement)
            return _HEAD.pack(_WORKER, 0, kind, record.request_id, 0, 0, record.deadline_ns, 0) + confined
        if isinstance(record, Failed):
            numbers = (record.stage, record.errno, record.reason, len(record.details))
            return _HEAD.pack(_FAILED, 0, 0, record.request_id, *numbers) + _join(record.details)
        return _encode_plain(record)
    except struct.error as error:
        raise RecordError(f"a number of {record!r} is out of range") from error


def decode(data: bytes) -> Record:
    """Return the record the bytes hold; anything else raises RecordError."""
    if len(data) < _HEAD.size:
        raise RecordError(f"record of {len(data)} bytes is shorter than its head")
    kind, flags, confined_by, number, *fields = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if kind == _SPAWN:
        return _decode_spawn(flags, confined_by, number, fields, body)
    if kind == _WORKER:
        return _decode_worker(flags, confined_by, number, fields, body)
    if confined_by:
        raise RecordError(f"record of kind {kind} with a confinement")
    if kind == _FAILED:
        stage, errno, reason, count = fields
        if stage not in STAGES or flags:
            raise RecordError(f"unknown stage {stage} of a failed start")
        return Failed(number, stage, errno, reason, _split(body, count))
    if body:
        raise RecordError(f"record of kind {kind} has {len(body)} bytes too many")
    return _decode_plain(kind, flags, number, fields)


def _encode_spawn(record: SpawnRequest) -> bytes:
    flags = (_HAS_ARG0 if record.arg0 is not None else 0) | (_PIPE_STDIN if record.pipe_stdin else 0)
    flags |= _LISTENS if record.listens else 0
    tail = b""
    if record.supervision:
        flags |= _SUPERVISED
        tail = record.supervision + _SUPERVISION_BYTES.pack(len(record.supervision))
    if record.limits != UNLIMITED:
        flags |= _LIMITED
        tail += encode_limits(record.limits)
    kind, confined = encode_confinement(record.confinement)
    numbers = (len(record.argv), len(record.env), record.deadline_ns, len(confined))
    strings = [record.cwd, record.slave, record.arg0 or b"", *record.argv, *record.env]
    return _HEAD.pack(_SPAWN, flags, kind, record.request_id, *numbers) + _join(strings) + confined + tail


def _decode_spawn(flags: int, confined_by: int, number: int, fields: list[int], body: bytes) -> SpawnRequest:
    argc, envc, deadline_ns, confined_bytes = fields
    # Supervision and confinement are binary and may hold NULs, so they stand behind the joined strings and
    # are cut off first, from the end.
    body, limits = _cut_limits(body) if flags & _LIMITED else (body, UNLIMITED)
    body, supervision = _cut_supervision(body) if flags & _SUPERVISED else (body, b"")
    end = len(body) - confined_bytes
    if argc < 1 or envc < 0 or deadline_ns < 0 or flags >> 5 or not 0 <= end <= len(body):
        raise RecordError("malformed head of a spawn request")
    confined = _decode_confinement(confined_by, body[end:])
    cwd, slave, arg0, *strings = _split(body[:end], 3 + argc + envc)
    if arg0 and not flags & _HAS_ARG0:
        raise RecordError("spawn request with an arg0 that its flags deny")
    given = arg0 if flags & _HAS_ARG0 else None
    piped = bool(flags & _PIPE_STDIN)
    return SpawnRequest(
        *(number, strings[:argc], strings[argc:], cwd, given, slave, piped, deadline_ns),
        *(confined, supervision, bool(flags & _LISTENS), limits),
    )


def _cut_supervision(body: bytes) -> tuple[bytes, bytes]:
    """Return what stands before a supervision, and the supervision."""
    end = len(body) - _SUPERVISION_BYTES.size
    length = _SUPERVISION_BYTES.unpack_from(body, end)[0] if end >= 0 else 0
    if not 0 < length <= end:
        raise RecordError("spawn request whose supervision is cut")
    return body[: end - length], body[end - length : end]


def _cut_limits(body: bytes) -> tuple[bytes, ChildLimits]:
    """Return what stands before the limits, and the limits."""
    try:
        return body[:-RECORD_BYTES], decode_limits(body[-RECORD_BYTES:])
    except ValueError as error:
        raise RecordError(str(error)) from None


def _decode_confinement(kind: int, data: bytes) -> Confinement:
    try:
        return decode_confinement(kind, data)
    except ValueError as error:
        raise RecordError(str(error)) from None


def _decode_worker(
    flags: int, confined_by: int, number: int, fields: list[int], body: bytes
) -> WorkerRequest:
    first, second, deadline_ns, last = fields
    if first or second or last or deadline_ns < 0 or flags:
        raise RecordError("malformed head of a worker request")
    return WorkerRequest(number, _decode_confinement(confined_by, body), deadline_ns)


def _encode_plain(record: Record) -> bytes:
    if isinstance(record, Exited):
        flags = _SURVIVORS if record.survivors else 0
        used = (record.cpu_us, record.peak_kib)
        return _HEAD.pack(_EXITED, flags, 0, record.child_id, record.pid, record.status, *used)
    if isinstance(record, Begun):
        return _HEAD.pack(_BEGUN, 0, 0, record.request_id, 0, 0, 0, 0)
    if isinstance(record, Started):
        return _HEAD.pack(_STARTED, 0, 0, record.request_id, record.pid, 0, 0, 0)
    if isinstance(record, SignalRequest):
        return _HEAD.pack(_SIGNAL, 0, 0, record.request_id, record.child_id, record.signum, 0, 0)
    if isinstance(record, Signalled):
        return _HEAD.pack(_SIGNALLED, 0, 0, record.request_id, int(record.delivered), record.errno, 0, 0)
    if isinstance(record, Release):
        return _HEAD.pack(_RELEASE, 0, 0, record.request_id, 0, 0, 0, 0)
    raise RecordError(f"{type(record).__name__} is no record")


def _decode_plain(kind: int, flags: int, number: int, fields: list[int]) -> Record:
    first, second, *others = fields
    if flags & ~(_SURVIVORS if kind == _EXITED else 0):
        raise RecordError(f"record of kind {kind} has flags it cannot have")
    if kind == _EXITED and min(others) >= 0:
        return Exited(number, first, second, bool(flags), *others)
    if any(others):
        raise RecordError(f"record of kind {kind} has fields it cannot have")
    if kind == _BEGUN and first == second == 0:
        return Begun(number)
    if kind == _STARTED and second == 0:
        return Started(number, first)
    if kind == _SIGNAL and first >= 0:
        return SignalRequest(number, first, second)
    if kind == _SIGNALLED and first in (0, 1):
        return Signalled(number, bool(first), second)
    if kind == _RELEASE and first == second == 0:
        return Release(number)
    raise RecordError(f"unknown record kind {kind} or value {first}")


def _join(strings: Sequence[bytes]) -> bytes:
    joined = b"\0".join(strings)
    # A NUL within a string would be read as the border between two.
    if joined.count(b"\0") != max(len(strings) - 1, 0):
        raise RecordError("a string holds a NUL byte")
    return joined


def _split(body: bytes, count: int) -> list[bytes]:
    strings = body.split(b"\0") if count else []
    if len(strings) != count or (not count and body):
        raise RecordError(f"record announces {count} strings and holds {len(strings)}")
    return strings
