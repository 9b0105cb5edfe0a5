"""What an audit record tells of a request's params.  Pure.

`facts_of` reads any params.  Most records are of a few paths, numbers and names that are recorded as they
came: `quick_text` makes the same JSON of them with one decoder and one encoder.  A test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import fields

from execserver.protocol.batches import FsNodeKind
from execserver.protocol.decoding import decode_params
from execserver.protocol.envelope import Request
from execserver.protocol.errors import RpcError
from execserver.protocol.lifting import Lifted
from execserver.protocol.own_methods import FS_EXTRACT, FS_WRITE_MANY, FS_WRITE_PART

T = TypeVar("T")

_STRANGE_BYTES = 200
_NO_URL, _NO_WORDS = "(no URL)", "(no words)"
_NOT_GIVEN = msgspec.Raw()
MOST_NAMES = 64  # written, and removed, by one request that are recorded; of more their number
_QUICK_BYTES = 2048  # in less, no text is so long that it would be cut


class _Facts(msgspec.Struct, kw_only=True, rename="camel"):
    """The members of params that are recorded; all others are skipped.

    Not one has a type here: a request may have any members besides its own, and none of them may hide others.
    """

    argv: msgspec.Raw = _NOT_GIVEN
    command: msgspec.Raw = _NOT_GIVEN
    cwd: msgspec.Raw = _NOT_GIVEN
    path: msgspec.Raw = _NOT_GIVEN
    source_path: msgspec.Raw = _NOT_GIVEN
    destination_path: msgspec.Raw = _NOT_GIVEN
    recursive: msgspec.Raw = _NOT_GIVEN
    mode: msgspec.Raw = _NOT_GIVEN
    process_id: msgspec.Raw = _NOT_GIVEN
    signal: msgspec.Raw = _NOT_GIVEN
    host: msgspec.Raw = _NOT_GIVEN
    port: msgspec.Raw = _NOT_GIVEN
    url: msgspec.Raw = _NOT_GIVEN
    method: msgspec.Raw = _NOT_GIVEN
    client_name: msgspec.Raw = _NOT_GIVEN
    network_proxy: msgspec.Raw = _NOT_GIVEN  # not recorded: it tells whether words may be credentials


_NUMBER = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _QuickFacts(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """The same members in the same order, with the types that nearly all requests have.

    Whose type is None here is recorded in another form than it came.
    """

    argv: None = None
    command: None = None
    cwd: str | None = None
    path: str | None = None
    source_path: str | None = None
    destination_path: str | None = None
    recursive: bool | None = None
    mode: _NUMBER | None = None
    process_id: str | None = None
    signal: str | None = None
    host: str | None = None
    port: _NUMBER | None = None
    url: None = None
    method: None = None
    client_name: str | None = None


_WITH_NAMES = (FS_WRITE_PART.name, FS_WRITE_MANY.name, FS_EXTRACT.name)  # these are within, as base64
_READER = msgspec.json.Decoder(_Facts)
_QUICK_READER = msgspec.json.Decoder(_QuickFacts)
_ENCODER = msgspec.json.Encoder()
_RECORDED = [each for each in fields(_Facts) if each.name != "network_proxy"]
_SHOWN = tuple("httpMethod" if each.name == "method" else each.encode_name for each in _RECORDED)
_GIVEN = attrgetter(*(each.name for each in _RECORDED))
_MASKED = "(credentials are masked)"
_PLAIN = msgspec.json.Decoder(str | _NUMBER | bool | list[str] | None)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def facts_of(request: Request, redact: Callable[[str], str]) -> dict[str, object]:
    """Return what is recorded of a request's params."""
    try:
        found = _decoded(request, _READER)
    except _UNREADABLE:
        return {"params": "unreadable"}
    facts = {
        shown: value
        for shown, text in zip(_SHOWN, _GIVEN(found), strict=True)
        if text is not _NOT_GIVEN and (value := _plain(text)) is not None
    }
    for name in ("argv", "command"):
        if isinstance(words := facts.get(name), list):
            # A start that failed has no stand-ins yet.
            given = bytes(found.network_proxy)
            masks = b"credentialMasking" in given or b"\\u" in given  # a name may be written so
            facts[name] = [redact(word) for word in ([*words[:1], _MASKED] if masks else words)]
        elif name in facts:
            facts[name] = _NO_WORDS
    if "url" in facts:
        facts["url"] = _shown_url(facts["url"])
    if request.method == FS_WRITE_PART.name and (piece := piece_of(request)) is not None:
        facts["name"] = _shown(piece.name)
    if request.method == FS_WRITE_MANY.name:
        facts |= _names_of(request)
    if request.method == FS_EXTRACT.name:
        facts |= _unpacked_of(request)
    if trace := request.trace:
        facts["trace"] = (trace.traceparent or "")[:64]
    return facts


class Piece(msgspec.Struct, frozen=True):
    """What a `fs/writePart` says of its piece besides the bytes."""

    path: str
    name: bytes
    part: bytes
    offset: int

    def continues(self, before: Piece) -> bool:
        """Return whether it belongs to the same file as the one before, and comes behind it."""
        is_same = (self.path, self.name, self.part) == (before.path, before.name, before.part)
        return is_same and self.offset > before.offset


class _Entry(msgspec.Struct):
    """Of an entry of `fs/writeMany` what it changes."""

    name: bytes
    kind: str


class _Entries(msgspec.Struct):
    entries: list[_Entry]


# Of base64 both take more spellings than the requests, and so each name that a request takes.
_PIECE_READER = msgspec.json.Decoder(Piece)
_ENTRIES_READER = msgspec.json.Decoder(_Entries)


def piece_of(request: Request) -> Piece | None:
    """Return which piece of which file a `fs/writePart` brings; None where that cannot be read."""
    try:
        return _decoded(request, _PIECE_READER)
    except _UNREADABLE:
        return None


def _names_of(request: Request) -> dict[str, object]:
    """Return the first names that a `fs/writeMany` writes and removes, and how many more there are."""
    try:
        entries = _decoded(request, _ENTRIES_READER).entries
    except _UNREADABLE:
        return {"names": "unreadable"}
    gone = [each.name for each in entries if each.kind == FsNodeKind.ABSENT.value]
    kept = [each.name for each in entries if each.kind != FsNodeKind.ABSENT.value]
    return _told("names", "moreNames", kept) | _told("removed", "moreRemoved", gone)


def _unpacked_of(request: Request) -> dict[str, object]:
    """Return the first names of what begins in a piece of an archive, and how many more there are."""
    from execserver.core.tar_chunk import names_in  # late: few unpack anything

    try:
        params = decode_params(FS_EXTRACT, request.params)
    except RpcError:
        return {"names": "unreadable"}
    at = params.position
    return _told("names", "moreNames", names_in(bytes(params.chunk), at.size - at.offset if at else 0))


def _told(member: str, more: str, names: list[bytes]) -> dict[str, object]:
    """Return a member with the first names, and one with the number of the others, if there are any."""
    facts: dict[str, object] = {member: [_shown(name) for name in names[:MOST_NAMES]]} if names else {}
    if len(names) > MOST_NAMES:
        facts[more] = len(names) - MOST_NAMES
    return facts


def _shown(name: bytes) -> str:
    return name.decode(errors="backslashreplace")


def quick_text(request: Request) -> str | None:
    """Return the same as members of a JSON object, without the braces; None where it takes `facts_of`."""
    if request.trace or request.method in _WITH_NAMES:
        return None
    try:
        text = _ENCODER.encode(_decoded(request, _QUICK_READER))
    except _UNREADABLE:
        return None
    return text[1:-1].decode() if len(text) < _QUICK_BYTES and is_exact(text) else None


def json_of(value: object, general: Callable[[object], str]) -> str:
    """Return what `general`, which escapes all but printable ASCII, makes of a value, but sooner."""
    try:
        text = _ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError):  # a surrogate, a number that is too large
        return general(value)
    return text.decode() if is_exact(text) else general(value)


def is_exact(text: bytes) -> bool:
    """Return whether JSON by msgspec, which escapes nothing above U+001F, escapes as records do."""
    return text.isascii() and b"\x7f" not in text


def _decoded(request: Request, reader: msgspec.json.Decoder[T]) -> T:
    params = request.params
    return params.rest(reader) if isinstance(params, Lifted) else reader.decode(params)


def _plain(text: msgspec.Raw) -> object:
    """Return a member's value; of one that no request takes, the beginning of its JSON."""
    try:
        return _PLAIN.decode(text)
    except _UNREADABLE:
        return bytes(text)[:_STRANGE_BYTES].decode(errors="backslashreplace")


def _shown_url(url: object) -> str:
    """Return scheme, host and path of a URL: what is behind may be a secret, and so may a user in it."""
    if not isinstance(url, str):
        return _NO_URL
    try:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"
    except ValueError:
        return _NO_URL
