"""The base class of params and result records, and the JSON form of the three special types.

A path is the text of a URI, bytes are base64, and a sandbox context is decoded by the module that helper
processes share.  All decoders and encoders of records use the two hooks of this module.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated

import msgspec

from execserver.protocol import base64, uuid_text
from execserver.protocol.paths import PathUri
from execserver.protocol.sandbox import FileSystemSandboxContext


class Record(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """A typed JSON object: snake_case here, camelCase on the wire, unknown members ignored.

    Members are written in declaration order and `None` is written as `null`, as the contract asks.
    """


if TYPE_CHECKING:
    Base64 = bytes
else:

    class _BytesLike(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, bytes)

    class Base64(metaclass=_BytesLike):
        """Bytes written as base64.  Not plain `bytes`, whose built-in decoder accepts stray bits."""


REMEMBERED_CONTEXTS = 64
REMEMBERED_CONTEXT_BYTES = 16 * 1024  # a longer context is decoded every time
U16_MAX = 2**16 - 1
U64_MAX = 2**64 - 1
U16 = Annotated[int, msgspec.Meta(ge=0, le=U16_MAX, title="u16")]
I64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1, title="i64")]
I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1, title="i32")]
# The decoder's limits have at most 63 bits: a record with such a member checks the upper limit itself.
U64 = Annotated[int, msgspec.Meta(ge=0, title="u64")]
UuidText = Annotated[str, msgspec.Meta(pattern=uuid_text.PATTERN, title="uuid")]
USIZE = Annotated[int, msgspec.Meta(ge=0, title="usize")]


def refuse_beyond_u64(*numbers: int | None) -> None:
    """Raise ValueError if a number is larger than an unsigned 64-bit integer."""
    for number in numbers:
        if number is not None and number > U64_MAX:
            raise ValueError("invalid number")


def decode_value(wanted: type, value: object) -> object:
    """Convert decoded JSON to one of the three special types.  Raises InvalidParams or InvalidBase64."""
    if wanted is PathUri:
        if isinstance(value, str):
            return PathUri.parse(value)
    elif wanted is Base64:
        if isinstance(value, str):
            return base64.decode(value)
    elif wanted is FileSystemSandboxContext:
        return _context(value)
    raise TypeError(f"no way to decode {wanted.__name__}")


def _context(value: object) -> FileSystemSandboxContext:
    """Decode a context, or return the one from the same text: clients repeat theirs in every request."""
    text = msgspec.json.encode(value)
    if len(text) > REMEMBERED_CONTEXT_BYTES:
        return FileSystemSandboxContext.from_json(value)
    return known_context(text)


@functools.lru_cache(maxsize=REMEMBERED_CONTEXTS)
def known_context(text: bytes) -> FileSystemSandboxContext:
    """Return the context in a JSON text of at most REMEMBERED_CONTEXT_BYTES.

    Raises InvalidParams, or msgspec.DecodeError if the text is not JSON.
    """
    return FileSystemSandboxContext.from_json(msgspec.json.decode(text))


def encode_value(value: object) -> object:
    """Convert one of the special types to a value for JSON."""
    if isinstance(value, PathUri):
        return value.uri
    if isinstance(value, FileSystemSandboxContext):
        return value.to_json()
    raise TypeError(f"no way to encode {type(value).__name__}")


encode_json = msgspec.json.Encoder(enc_hook=encode_value).encode


def encode_record(record: msgspec.Struct | msgspec.Raw) -> bytes:
    """Return the JSON text of a record, members in declaration order; return JSON text unchanged."""
    return bytes(record) if isinstance(record, msgspec.Raw) else encode_json(record)
