"""Long base64 taken out of a message before its JSON is decoded: a JSON decoder reads each byte twice.

Only messages in the form in which clients and servers write them are looked at: flat params or a flat result
of plain members, one of them long base64.  All others are left to the decoder, and so is everything that is
wrong; so the outcome is the same, and only the time differs.

The binary form of such a message is the same without base64: a byte 0, with which no JSON text begins, four
bytes with the length of the JSON text, that text, in which `chunk` is empty, and the bytes of `chunk`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from execserver.protocol import base64

LEAST_BYTES: Final = 4096  # a shorter message is decoded in the time that this takes
BINARY: Final = b"\0"  # the first byte of the binary form
_HEAD_BYTES: Final = 5  # of the binary form: that byte and the length
_MOST_BEHIND: Final = 512  # bytes behind the base64

_PLAIN = rb'(?:"[ !#-\[\]-~]{0,256}"|-?[0-9]{1,20}|true|false|null)'  # strings of ASCII without escapes
_NAME = rb'"[A-Za-z]{1,24}":'
_BEFORE = (
    rb'\{(?:"id":%b,)?(?:"method":"[ !#-\[\]-~]*","params"|"result"):'
    rb'(?P<value>\{(?:%b%b,){0,8}"(?P<member>%%b)":")' % (_PLAIN, _NAME, _PLAIN)
)
_BEHIND = rb'"((?:,%b%b){0,8}\})\}' % (_NAME, _PLAIN)

_MEMBERS = {b"chunk": "chunk", b"deltaBase64": "delta_base64", b"dataBase64": "data_base64"}
# In a request, `dataBase64` is text to the decoder: its damage is reported by the method.
_CHUNK = _OF_CLIENT = b"chunk"
_OF_SERVER = b"|".join(_MEMBERS)

T = TypeVar("T")


class Lifted:
    """Params or a result without the base64 of one member; `message` is the whole message without it."""

    __slots__ = ("_after", "_before", "_data", "_member", "message")

    def __init__(self, message: bytes, before: bytes, after: bytes, member: str, data: bytes) -> None:
        self.message = message
        self._before = before
        self._after = after
        self._member = member
        self._data = data

    def __len__(self) -> int:
        return len(self._before) + len(self._data) + len(self._after)

    def decoded(self, decoder: msgspec.json.Decoder[T]) -> T:
        """Return what a decoder makes of the whole text.  Raises what the decoder raises."""
        found: Any = decoder.decode(self._before + self._after)
        if getattr(found, self._member, None) != b"":
            return decoder.decode(bytes(self))
        whole: T = msgspec.structs.replace(found, **{self._member: self._data})
        return whole

    def rest(self, decoder: msgspec.json.Decoder[T]) -> T:
        """Return what a decoder that skips the base64 makes of the text.  Raises what the decoder raises."""
        return decoder.decode(self._before + self._after)

    def __bytes__(self) -> bytes:
        """Return the whole JSON text: some bytes have just one base64 text."""
        return self._before + base64.encode(self._data) + self._after


# Of a record: the decoder makes JSON text of it, and this module puts the other in its place.
if TYPE_CHECKING:
    JsonText: TypeAlias = msgspec.Raw | Lifted
else:
    JsonText = msgspec.Raw


def from_client(message: bytes) -> Lifted | None:
    """Take the long bytes out of a request; None if it is to be decoded as it is."""
    if message[:1] == BINARY:
        return _apart(message)
    return None if len(message) < LEAST_BYTES else _lifted(_OF_CLIENT, message)


def from_server(message: bytes) -> Lifted | None:
    """Take the long bytes out of a response or notification; None if it is to be decoded as it is."""
    if message[:1] == BINARY:
        return _apart(message)
    return None if len(message) < LEAST_BYTES else _lifted(_OF_SERVER, message)


@cache  # at the first long message, which most programs never see
def _patterns(members: bytes) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    return re.compile(_BEFORE % members), re.compile(_BEHIND)


def has_binary_form(text: bytes) -> bool:
    """Return whether a message with an empty `chunk` has a binary form."""
    place = _place(_CHUNK, text)
    return place is not None and place.begin == place.end


def binary_head(text: bytes) -> bytes:
    """Return what is before the bytes of `chunk` in the binary form of a message."""
    return b"".join((BINARY, len(text).to_bytes(_HEAD_BYTES - 1, "big"), text))


def binary_form(text: bytes, data: bytes) -> bytes | None:
    """Return the binary form of a message; `text` has an empty `chunk`, in whose place `data` stands.

    None if there is none.
    """
    is_long = len(data) >= LEAST_BYTES
    return binary_head(text) + data if is_long and has_binary_form(text) else None


def _apart(message: bytes) -> Lifted | None:
    """Take a message in binary form apart; None if it is none."""
    end = _HEAD_BYTES + int.from_bytes(message[1:_HEAD_BYTES], "big")
    if len(message) < end:
        return None
    text = message[_HEAD_BYTES:end]
    place = _place(_CHUNK, text)
    if place is None or place.begin != place.end:
        return None
    return Lifted(text, place.before, place.after, place.member, message[end:])


def _lifted(members: bytes, message: bytes) -> Lifted | None:
    place = _place(members, message)
    if place is None:
        return None
    try:
        data = base64.decode_buffer(memoryview(message)[place.begin : place.end])
    except ValueError:
        return None
    without = message[: place.begin] + message[place.end :]
    return Lifted(without, place.before, place.after, place.member, data)


class _Place(NamedTuple):
    """Where the base64 of a message is, which member it is, and what is around it in params or result."""

    begin: int
    end: int
    before: bytes
    after: bytes
    member: str


def _place(members: bytes, message: bytes) -> _Place | None:
    before, after = _patterns(members)
    found = before.match(message)
    if found is None:
        return None
    begin, end = found.end(), message.find(b'"', found.end())
    if end < 0 or len(message) - end > _MOST_BEHIND:
        return None
    behind = after.fullmatch(message, end)
    # Of a member that comes twice the last one counts.
    if behind is None or b'"%b"' % found["member"] in behind[1]:
        return None
    return _Place(begin, end, found["value"], b'"' + behind[1], _MEMBERS[found["member"]])
