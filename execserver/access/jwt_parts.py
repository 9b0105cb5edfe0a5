"""The parts of a JSON Web Token in its compact form, read strictly.

Pure.  One text has one meaning: base64url in its only spelling, UTF-8, JSON without a member twice and
without constants that JSON has not.  What a token means, and whether it is genuine, others decide.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import NamedTuple


class Malformed(ValueError):
    """The text is no token.  The exception says no word of it."""


class Parts(NamedTuple):
    """A token in its three parts, still encoded; `signed` is what the signature is over."""

    signed: bytes
    header: bytes
    payload: bytes
    signature: bytes


def split(token: bytes) -> Parts:
    """Return the parts of a token.  Raises Malformed."""
    signed, dot, signature = token.rpartition(b".")
    header, separator, payload = signed.partition(b".")
    if not dot or not separator:
        raise Malformed("not three parts")
    return Parts(signed, header, payload, signature)


def json_object(part: bytes) -> dict[str, object]:
    """Return the object that a part holds.  Raises Malformed."""
    return strict_object(decoded(part))


def strict_object(data: bytes) -> dict[str, object]:
    """Return the object of a JSON text, no member of which is there twice.  Raises Malformed."""
    try:
        value = _DECODER.decode(data.decode())
    except (ValueError, RecursionError):
        raise Malformed("not one JSON object") from None
    if not isinstance(value, dict):
        raise Malformed("not one JSON object")
    return value


def decoded(part: bytes) -> bytes:
    """Decode base64url without padding, in its only spelling.  Raises Malformed."""
    try:
        data = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    except binascii.Error:
        raise Malformed("not base64url") from None
    # The decoder skips what it does not know, and ignores bits behind the last byte.
    if base64.urlsafe_b64encode(data).rstrip(b"=") != part:
        raise Malformed("not base64url")
    return data


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a member twice")
    return found


def _no_constant(name: str) -> object:
    raise ValueError(name)


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)
