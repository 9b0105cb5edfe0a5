"""One JSON text <-> one message: requests, notifications, responses and errors (wire contract, section 4).

The common case, a well-formed request, costs one typed decode; its params stay undecoded JSON.  For anything
else, request, notification, response and error are tried in this order, so a request with an unusable id or
trace counts as a notification.  A malformed message, whatever bytes it holds, raises MalformedMessage and no
other exception.

Unknown members are ignored.  Of a duplicate member the last one counts (the reference server is stricter),
and messages written as positional arrays are malformed (it accepts them).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Annotated

import msgspec

from execserver.protocol import lifting
from execserver.protocol.errors import RpcError
from execserver.protocol.lifting import LEAST_BYTES, JsonText
from execserver.protocol.record import encode_json

MALFORMED_ID = -1  # the id of the answer to a malformed message
MAX_NESTING = 127  # arrays and objects inside each other, the message itself included
_SHALLOW_BYTES = 2 * MAX_NESTING  # too short for more of them: each has two brackets, or the text is damaged
_NESTING_CHECKED_BYTES = 1 << 20  # counting the brackets of longer texts would delay other connections

_I64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
RequestId = _I64 | str

_NULL = msgspec.Raw(b"null")
_ABSENT = msgspec.Raw(b"")
_NO_MESSAGE = "data did not match any variant of untagged enum JSONRPCMessage"


class MalformedMessage(Exception):
    """The text is not a message; `reason` says why, and the transport adds where it came from."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Trace(msgspec.Struct, frozen=True):
    """The place of a request in the client's trace; checked and ignored."""

    traceparent: str | None = None
    tracestate: str | None = None


class Request(msgspec.Struct, frozen=True):
    """A request, to be answered with the same id; `params` is JSON text, `null` if missing."""

    id: RequestId
    method: str
    params: JsonText = _NULL
    trace: Trace | None = None


class Notification(msgspec.Struct, frozen=True):
    """A message without an answer."""

    method: str
    params: JsonText = _NULL


class Response(msgspec.Struct, frozen=True):
    """The result of a request."""

    id: RequestId
    result: JsonText


class ErrorBody(msgspec.Struct, frozen=True):
    """Why a request failed."""

    code: _I64
    message: str
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # an extension; usually missing


class ErrorMessage(msgspec.Struct, frozen=True):
    """The failure of a request; the id is -1 if the request was a malformed message."""

    error: ErrorBody
    id: RequestId


Message = Request | Notification | Response | ErrorMessage


class _FromServer(msgspec.Struct, frozen=True):
    """What a client receives: a response, an error or a notification, distinguished by their members."""

    id: RequestId | None = None
    result: msgspec.Raw = _ABSENT
    error: ErrorBody | None = None
    method: str | None = None
    params: msgspec.Raw = _NULL


_request = msgspec.json.Decoder(Request)
_from_server = msgspec.json.Decoder(_FromServer)
_any_json = msgspec.json.Decoder(msgspec.Raw)
# In the order in which they are tried.
_kinds: tuple[Callable[[bytes], Message], ...] = (
    _request.decode,
    msgspec.json.Decoder(Notification).decode,
    msgspec.json.Decoder(Response).decode,
    msgspec.json.Decoder(ErrorMessage).decode,
)


def parse_message(text: bytes | str) -> Message:
    """Decode what a client sent.  Raises MalformedMessage."""
    if isinstance(text, bytes) and len(text) <= _SHALLOW_BYTES and text.isascii():
        data = text  # as nearly all are: there is nothing to check
    else:
        if len(text) >= LEAST_BYTES and (request := _long_request(text)) is not None:
            return request
        data = _checked(text)
    try:
        return _request.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return _classify(data)


def parse_reply(text: bytes | str) -> Message:
    """Decode what a server sent; responses, the common case, are tried first.  Raises MalformedMessage."""
    if len(text) >= LEAST_BYTES and (reply := _long_reply(text)) is not None:
        return reply
    data = _checked(text)
    try:
        seen = _from_server.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return _classify(data)
    if seen.method is None and seen.id is not None:
        if seen.result is not _ABSENT:
            return Response(seen.id, seen.result)
        if seen.error is not None:
            return ErrorMessage(seen.error, seen.id)
    elif seen.method is not None and seen.id is None:
        return Notification(seen.method, seen.params)
    return _classify(data)


def _long_request(text: bytes | str) -> Request | None:
    """Decode a request of which all but long base64 is short; None for any other text."""
    lifted = lifting.from_client(text) if isinstance(text, bytes) else None
    if lifted is None:
        return None
    try:
        found = _request.decode(lifted.message)
    except msgspec.DecodeError:
        return None
    return Request(found.id, found.method, lifted)


def _long_reply(text: bytes | str) -> Response | Notification | None:
    """Decode a response or notification as `_long_request` does."""
    lifted = lifting.from_server(text) if isinstance(text, bytes) else None
    if lifted is None:
        return None
    try:
        seen = _from_server.decode(lifted.message)
    except msgspec.DecodeError:
        return None
    if seen.method is None:
        return None if seen.id is None else Response(seen.id, lifted)
    return Notification(seen.method, lifted) if seen.id is None else None


def _checked(text: bytes | str) -> bytes:
    """Return the text as UTF-8, nested no deeper than the contract allows."""
    if isinstance(text, str):
        try:
            text = text.encode()
        except UnicodeEncodeError:
            raise MalformedMessage("the text holds a lone surrogate") from None
    elif not text.isascii():
        # The decoder skips params without reading them, so it would accept broken UTF-8.
        try:
            text.decode()
        except UnicodeDecodeError:
            raise MalformedMessage(_reason(text)) from None
    # In a longer text the decoder itself stops, at a depth of about a thousand.
    if _SHALLOW_BYTES < len(text) <= _NESTING_CHECKED_BYTES and _too_deep(text):
        raise MalformedMessage(_reason(text))
    return text


def _too_deep(data: bytes) -> bool:
    if not _has_many_brackets(data):
        return False
    steps = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
    brackets = (steps.get(byte, 0) for byte in _without_strings(data))
    return any(depth > MAX_NESTING for depth in accumulate(brackets))


def _has_many_brackets(data: bytes) -> bool:
    # Not with `count`, which reads byte by byte: `find` skips the base64 of a long message 100 times as fast.
    left = MAX_NESTING
    for bracket in (b"[", b"{"):
        at = data.find(bracket)
        while at >= 0:
            if not left:
                return True
            left -= 1
            at = data.find(bracket, at + 1)
    return False


def _without_strings(data: bytes) -> bytes:
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(plain.split(b'"')[::2])


def _classify(data: bytes) -> Message:
    """Try the kinds of messages one after the other; raise MalformedMessage if it is none of them."""
    try:
        _any_json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        raise MalformedMessage(_reason(data)) from None
    return _first_kind(data)


def _first_kind(data: bytes) -> Message:
    for decode in _kinds:
        try:
            return decode(data)
        except (msgspec.DecodeError, RecursionError):
            continue
    raise MalformedMessage(_NO_MESSAGE)


def _reason(data: bytes) -> str:
    """Return why a text is not JSON.

    If a whole value comes first and is no message, that is the reason, as at the reference server.
    """
    from execserver.protocol.syntax import find_damage  # late: only malformed input needs it

    damage = find_damage(data)
    if damage.value_end is not None:
        try:
            _first_kind(data[: damage.value_end])
        except MalformedMessage as error:
            return error.reason
    return damage.reason


class _ResultOut(msgspec.Struct):
    id: int | str
    result: msgspec.Struct | msgspec.Raw


class _ErrorOut(msgspec.Struct):
    error: ErrorBody
    id: int | str


class _NotificationOut(msgspec.Struct):
    method: str
    params: msgspec.Struct | msgspec.Raw


class _RequestOut(msgspec.Struct):
    id: int | str
    method: str
    params: msgspec.Struct | msgspec.Raw | None


def encode_result(request_id: int | str, result: msgspec.Struct | msgspec.Raw) -> bytes:
    """Return the response to a request; `result` is a record or JSON text."""
    if isinstance(result, msgspec.Raw):  # the encoder would do the same in twice the time
        return b"".join((b'{"id":', encode_json(request_id), b',"result":', result, b"}"))
    return encode_json(_ResultOut(request_id, result))


def around_result(request_id: int | str) -> tuple[bytes, bytes]:
    """Return the bytes of a response before and behind the JSON text of its result."""
    return b'{"id":%b,"result":' % encode_json(request_id), b"}"


def encode_error(request_id: int | str, error: RpcError) -> bytes:
    """Return the answer to a request that failed."""
    message = error.message
    if not message.isascii():
        message = message.encode("utf-8", "replace").decode()  # it may quote a lone surrogate
    data = msgspec.UNSET if error.data is None else msgspec.Raw(encode_json(error.data))
    return encode_json(_ErrorOut(ErrorBody(error.code, message, data), request_id))


def encode_notification(method: str, params: msgspec.Struct | msgspec.Raw) -> bytes:
    """Return a notification; `params` is a record or JSON text."""
    return encode_json(_NotificationOut(method, params))


def encode_again(request: Request, params: bytes) -> bytes:
    """Return a request that was received, with other params."""
    return encode_json(Request(request.id, request.method, msgspec.Raw(params), request.trace))


def encode_request(request_id: int | str, method: str, params: msgspec.Struct | msgspec.Raw | None) -> bytes:
    """Return a request as Codex's own client writes it, with `params` null if there are none."""
    return encode_json(_RequestOut(request_id, method, params))
