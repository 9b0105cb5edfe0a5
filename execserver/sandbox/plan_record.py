"""Sandbox plans as bytes, for the channel to the zygote and to the file workers.

The format is private to one version of the program.  Decoding is strict and bounded: every length is checked
against what is left, every word against the known ones, and nothing may follow.  Anything else raises
PlanRecordError.
"""

from __future__ import annotations

import struct

from execserver.sandbox.plan import (
    FILTER_NONE,
    FILTER_OPEN,
    FILTER_PROXY_ROUTED,
    FILTER_RESTRICTED,
    HIDDEN_DIRECTORY,
    HIDDEN_FILE,
    LINK,
    NETWORK_HOST,
    NETWORK_NONE,
    NETWORK_PROXY,
    PASSAGE,
    READ,
    ROOT_EMPTY,
    ROOT_HOST,
    ROOT_READ_ONLY,
    ROOT_WRITABLE,
    WRITE,
    Identity,
    Missing,
    Mount,
    SandboxPlan,
)

MAX_PLAN_BYTES = 8 * 1024 * 1024
MAX_TEXT_BYTES = 64 * 1024  # a pattern may be longer than a path
MAX_ITEMS = 65536  # of one kind: 8192 matches of each pattern, and what the rules add

_MAGIC = b"view2"
_ROOTS = (ROOT_HOST, ROOT_READ_ONLY, ROOT_EMPTY, ROOT_WRITABLE)
_NETWORKS = (NETWORK_HOST, NETWORK_NONE, NETWORK_PROXY)
_FILTERS = (FILTER_NONE, FILTER_RESTRICTED, FILTER_PROXY_ROUTED, FILTER_OPEN)
_KINDS = (READ, WRITE, HIDDEN_DIRECTORY, PASSAGE, HIDDEN_FILE, LINK)
_BINDS = (READ, WRITE)

_HEAD = struct.Struct("<5sBBBB")
_COUNT = struct.Struct("<I")
_MOUNT = struct.Struct("<BB")  # kind, has an identity
_MISSING = struct.Struct("<BB")  # directory, metadata
_IDENTITY = struct.Struct("<QQI")


class PlanRecordError(Exception):
    """The bytes are no plan, or the plan does not fit into a record."""


def encode_plan(plan: SandboxPlan) -> bytes:
    """Return a plan as bytes.  Raises PlanRecordError for a plan above the limits."""
    parts = [
        _HEAD.pack(
            _MAGIC,
            _ROOTS.index(plan.root),
            _NETWORKS.index(plan.network),
            _FILTERS.index(plan.syscall_filter),
            plan.nesting,
        )
    ]
    _put_count(parts, len(plan.mounts))
    for mount in plan.mounts:
        parts.append(_MOUNT.pack(_KINDS.index(mount.kind), mount.identity is not None))
        if mount.identity is not None:
            parts.append(_IDENTITY.pack(*mount.identity))
        _put_text(parts, mount.path)
        # The source of a bind is its path, so it is not sent twice.
        if mount.kind == LINK:
            _put_text(parts, mount.source)
    _put_count(parts, len(plan.missing))
    for missing in plan.missing:
        parts.append(_MISSING.pack(missing.directory, missing.metadata))
        parts.append(_IDENTITY.pack(*missing.parent))
        _put_text(parts, missing.path)
    for texts in (plan.globs, plan.writable, plan.readable, plan.read_only, plan.denied):
        _put_count(parts, len(texts))
        for text in texts:
            _put_text(parts, text)
    record = b"".join(parts)
    if len(record) > MAX_PLAN_BYTES:
        raise PlanRecordError("the plan is too large")
    return record


def decode_plan(record: bytes) -> SandboxPlan:
    """Return the plan in some bytes.  Raises PlanRecordError for anything else."""
    if len(record) > MAX_PLAN_BYTES:
        raise PlanRecordError("the record is too large")
    reader = _Reader(record)
    magic, root, network, syscall_filter, nesting = reader.take(_HEAD)
    if magic != _MAGIC:
        raise PlanRecordError("not a plan")
    plan = SandboxPlan(
        _word(_ROOTS, root),
        mounts=tuple([reader.mount() for _ in range(reader.count())]),
        missing=tuple([reader.missing() for _ in range(reader.count())]),
        globs=reader.texts(),
        network=_word(_NETWORKS, network),
        syscall_filter=_word(_FILTERS, syscall_filter),
        writable=reader.texts(),
        readable=reader.texts(),
        read_only=reader.texts(),
        denied=reader.texts(),
        nesting=_flag(nesting),
    )
    reader.finish()
    return plan


class _Reader:
    """Takes values off the front of a record; raises PlanRecordError where one is cut short."""

    def __init__(self, record: bytes) -> None:
        self._record = record
        self._at = 0

    def take(self, form: struct.Struct) -> tuple[bytes | int, ...]:
        try:
            values = form.unpack_from(self._record, self._at)
        except struct.error:
            raise PlanRecordError("the record is cut short") from None
        self._at += form.size
        return values

    def count(self) -> int:
        (count,) = self.take(_COUNT)
        if not isinstance(count, int) or count > MAX_ITEMS:
            raise PlanRecordError("too many items")
        return count

    def text(self) -> bytes:
        (length,) = self.take(_COUNT)
        if not isinstance(length, int) or length > MAX_TEXT_BYTES:
            raise PlanRecordError("a text is too long")
        text = self._record[self._at : self._at + length]
        if len(text) < length:
            raise PlanRecordError("the record is cut short")
        self._at += length
        return text

    def path(self) -> bytes:
        path = self.text()
        if path[:1] != b"/" or b"\0" in path:
            raise PlanRecordError("not an absolute path")
        return path

    def texts(self) -> tuple[bytes, ...]:
        return tuple([self.path() for _ in range(self.count())])

    def identity(self) -> Identity:
        device, inode, kind = self.take(_IDENTITY)
        return (int(device), int(inode), int(kind))

    def mount(self) -> Mount:
        word, identified = self.take(_MOUNT)
        kind = _word(_KINDS, word)
        identity = self.identity() if _flag(identified) else None
        path = self.path()
        # A symlink's text may be relative: no path.
        source = self.text() if kind == LINK else path if kind in _BINDS else b""
        return Mount(kind, path, source, identity)

    def missing(self) -> Missing:
        directory, metadata = self.take(_MISSING)
        parent = self.identity()
        return Missing(self.path(), parent, _flag(directory), _flag(metadata))

    def finish(self) -> None:
        if self._at != len(self._record):
            raise PlanRecordError("something follows the plan")


def _word(words: tuple[str, ...], index: object) -> str:
    if not isinstance(index, int) or index >= len(words):
        raise PlanRecordError("an unknown word")
    return words[index]


def _flag(value: object) -> bool:
    if value not in (0, 1):
        raise PlanRecordError("neither yes nor no")
    return value == 1


def _put_count(parts: list[bytes], count: int) -> None:
    if count > MAX_ITEMS:
        raise PlanRecordError("too many items")
    parts.append(_COUNT.pack(count))


def _put_text(parts: list[bytes], text: bytes) -> None:
    if len(text) > MAX_TEXT_BYTES:
        raise PlanRecordError("a text is too long")
    parts.append(_COUNT.pack(len(text)))
    parts.append(text)
