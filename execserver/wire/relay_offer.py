"""The extra member by which two ends agree on a reliable stream, inside the encrypted channel.

`relayReliability: 1` in the params of the first message, an `initialize` request, offers it; the same member
in the result of its answer accepts.  Everything else in the two messages is unchanged, and peers that do not
know the member ignore it.  Inside the channel, no relay can add or remove it.
"""

from __future__ import annotations

from typing import Final

import msgspec

MEMBER: Final = "relayReliability"
_VERSION: Final = msgspec.Raw(b"1")

_Members = dict[str, msgspec.Raw]
_decode = msgspec.json.Decoder(_Members).decode
_encode = msgspec.json.encode


def add_offer(message: bytes) -> bytes | None:
    """Return the `initialize` request with the offer added; None if the message is another one."""
    request = _members(message)
    if request is None or not _is_initialize(request):
        return None
    return _with_member(request, "params")


def has_offer(message: bytes) -> bool:
    """Return True for an `initialize` request that offers reliability."""
    request = _members(message)
    return request is not None and _is_initialize(request) and _has_member(request, "params")


def add_acceptance(message: bytes) -> bytes | None:
    """Return the answer to `initialize` with the offer accepted; None if it is an error."""
    answer = _members(message)
    return None if answer is None or "result" not in answer else _with_member(answer, "result")


def has_acceptance(message: bytes) -> bool:
    """Return True for an answer that accepts reliability."""
    answer = _members(message)
    return answer is not None and "id" in answer and _has_member(answer, "result")


def _members(text: bytes | msgspec.Raw) -> _Members | None:
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # the receiver of messages reports what is wrong with it


def _is_initialize(request: _Members) -> bool:
    return "id" in request and bytes(request.get("method", b"")) == b'"initialize"'


def _with_member(message: _Members, name: str) -> bytes | None:
    inner = _members(message.get(name, msgspec.Raw(b"")))
    if inner is None:
        return None
    return _encode(message | {name: inner | {MEMBER: _VERSION}})


def _has_member(message: _Members, name: str) -> bool:
    inner = _members(message.get(name, msgspec.Raw(b"")))
    return inner is not None and bytes(inner.get(MEMBER, b"")) == b"1"
