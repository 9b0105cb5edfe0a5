"""Tar as a stream: entries to bytes, and bytes to entries.  Pure.

Written is pax, which holds names of any bytes and times in nanoseconds.  Read is what tar programs write,
ustar, pax and GNU's long names, from a peer that is not trusted: names and headers are bounded, and what does
not fit is `BadArchive`.  Whether a name is a good one is the caller's to decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from execserver.protocol.tar_header import BLOCK, BadHeader, decimal, is_sound, number, records

FILE, HARD_LINK, SYMLINK, DIRECTORY, OTHER = "file", "hardlink", "symlink", "directory", "other"
END: Final = bytes(2 * BLOCK)
_MAX_HEADER: Final = 64 * 1024  # of one pax header or long name
_MAX_EXTRAS: Final = 16  # of these before one entry
_MAX_BEHIND: Final = 1024 * 1024  # tar programs fill their last record, which has 10 KiB as a rule
_MAX_SIZE: Final = 2**62
_MAX_SECONDS: Final = 2**40  # from 1970, far beyond what a file system keeps
_KINDS: Final = {b"0": FILE, b"\0": FILE, b"7": FILE, b"1": HARD_LINK, b"2": SYMLINK, b"5": DIRECTORY}
_FLAGS: Final = {FILE: b"0", SYMLINK: b"2", DIRECTORY: b"5"}
_WANTED: Final = frozenset({b"path", b"linkpath", b"size", b"mtime"})
_NANO: Final = 10**9


class BadArchive(Exception):
    """What came is no archive, or not within the bounds."""


class Entry(NamedTuple):
    """One entry; `size` bytes of content follow a file."""

    name: bytes
    kind: str
    size: int = 0
    mode: int = 0o644
    modified_ns: int = 0
    target: bytes = b""


def padding(size: int) -> int:
    """Return how many bytes follow content of a size to fill its last block."""
    return -size % BLOCK


def header(entry: Entry) -> bytes:
    """Return everything that stands before the content of an entry."""
    seconds, nanoseconds = divmod(entry.modified_ns, _NANO)
    records = b"".join(
        _record(key, value)
        for key, value, needed in (
            (b"path", entry.name, len(entry.name) > 100 or not entry.name.isascii()),
            (b"linkpath", entry.target, len(entry.target) > 100 or not entry.target.isascii()),
            (b"size", b"%d" % entry.size, entry.size >= 8**11),
            (b"mtime", b"%d.%09d" % (seconds, nanoseconds), nanoseconds or not 0 <= seconds < 8**11),
        )
        if needed
    )
    if not records:
        return _block(entry, _FLAGS[entry.kind])
    # Names that are no UTF-8 go as they are: tar programs in the C locale take them so.
    before = _block(Entry(b"./PaxHeaders/x", FILE, len(records)), b"x")
    return before + records + bytes(padding(len(records))) + _block(entry, _FLAGS[entry.kind])


def _record(key: bytes, value: bytes) -> bytes:
    rest = b" %b=%b\n" % (key, value)
    length = len(rest) + 1
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return b"%d%b" % (length, rest)


def _block(entry: Entry, flag: bytes) -> bytes:
    seconds = min(max(entry.modified_ns // _NANO, 0), 8**11 - 1)
    fields = (
        entry.name[:100].ljust(100, b"\0"),
        b"%07o\0" % (entry.mode & 0o7777),
        b"%07o\0%07o\0" % (0, 0),
        b"%011o\0%011o\0" % (min(entry.size, 8**11 - 1), seconds),
        b" " * 8,
        flag,
        entry.target[:100].ljust(100, b"\0"),
        b"ustar\x0000",
    )
    block = b"".join(fields).ljust(BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


class Reader:
    """Takes bytes as they come; `feed` yields entries, and their content in pieces.

    After the end of the archive `ended` is True; what else a last record has is ignored, and more is refused.
    """

    def __init__(self) -> None:
        self.ended = False
        self._held = bytearray()
        self._content = 0
        self._skip = 0
        self._next: dict[bytes, bytes] = {}
        self._extra: bytes | None = None  # the flag of the header whose content is being collected
        self._extra_size = 0
        self._extras = 0
        self._behind = 0

    @property
    def is_complete(self) -> bool:
        """True where the bytes may end."""
        return self.ended or not (self._held or self._content or self._skip or self._extra)

    def feed(self, data: bytes) -> Iterator[Entry | bytes]:
        """Yield what these bytes complete.  Raises BadArchive."""
        try:
            yield from self._fed(data)
        except BadHeader as error:
            raise BadArchive(str(error)) from None

    def _fed(self, data: bytes) -> Iterator[Entry | bytes]:
        if self.ended:
            self._pass_over(len(data))
            return
        self._held += data
        while self._held and not self.ended:
            if self._content:
                piece = bytes(self._held[: self._content])
                del self._held[: len(piece)]
                self._content -= len(piece)
                yield piece
            elif self._skip:
                gone = min(self._skip, len(self._held))
                del self._held[:gone]
                self._skip -= gone
            elif self._extra is not None:
                if len(self._held) < self._extra_size:
                    return
                self._take_extra()
            elif len(self._held) < BLOCK:
                return
            else:
                block = bytes(self._held[:BLOCK])
                del self._held[:BLOCK]
                entry = self._entry(block)
                if entry is not None:
                    yield entry

    def _pass_over(self, size: int) -> None:
        self._behind += size
        if self._behind > _MAX_BEHIND:
            raise BadArchive("it goes on behind its end")

    def _entry(self, block: bytes) -> Entry | None:
        if not block.strip(b"\0"):
            self.ended = True
            self._pass_over(len(self._held))
            self._held.clear()
            return None
        if not is_sound(block):
            raise BadArchive("a header is damaged")
        flag, size = block[156:157], _size(number(block[124:136]))
        if flag in (b"x", b"g", b"L", b"K"):
            if size > _MAX_HEADER:
                raise BadArchive(f"a header has {size} bytes")
            self._extras += 1
            if self._extras > _MAX_EXTRAS:
                raise BadArchive("headers follow each other without an entry")
            self._extra, self._extra_size = flag, size + padding(size)
            self._next[b"\0size"] = b"%d" % size
            return None
        return self._made(block, flag, size)

    def _made(self, block: bytes, flag: bytes, size: int) -> Entry:
        given, self._next = self._next, {}
        self._extras = 0
        name = block[:100].rstrip(b"\0")
        prefix = block[345:500].rstrip(b"\0")
        if block[257:263] == b"ustar\0" and prefix:
            name = prefix + b"/" + name
        kind = _KINDS.get(flag, OTHER)
        size = _size(decimal(given[b"size"])) if b"size" in given else size
        if kind not in (FILE, OTHER):
            size = 0
        entry = Entry(
            given.get(b"path", name),
            kind,
            size,
            number(block[100:108]) & 0o7777,
            _time(given[b"mtime"]) if b"mtime" in given else _ns(number(block[136:148])),
            given.get(b"linkpath", block[157:257].rstrip(b"\0")),
        )
        if kind == OTHER:
            self._skip = size + padding(size)
        else:
            self._content, self._skip = size, padding(size)
        return entry

    def _take_extra(self) -> None:
        size = int(self._next.pop(b"\0size"))
        data = bytes(self._held[:size])
        del self._held[: self._extra_size]
        flag, self._extra = self._extra, None
        if flag == b"x":
            # Others than the wanted, of which there may be any number, are not kept.
            self._next.update((key, value) for key, value in records(data) if key in _WANTED)
        elif flag in (b"L", b"K"):
            self._next[b"path" if flag == b"L" else b"linkpath"] = data.rstrip(b"\0")


def _time(text: bytes) -> int:
    sign = -1 if text.startswith(b"-") else 1
    whole, _, fraction = text.lstrip(b"-").partition(b".")
    return _ns(sign * decimal(whole), sign * decimal((fraction + b"0" * 9)[:9]))


def _ns(seconds: int, nanoseconds: int = 0) -> int:
    return min(max(seconds, -_MAX_SECONDS), _MAX_SECONDS) * _NANO + nanoseconds


def _size(value: int) -> int:
    if not 0 <= value <= _MAX_SIZE:
        raise BadArchive("a size is damaged")
    return value
