"""One line <-> one JSON-RPC 2.0 message.  Pure: no I/O, no state.

An id is kept as the text it came as, so that it goes back unchanged, and as the value by which ids are
compared.  Params stay undecoded JSON.  For a malformed message, whatever bytes it holds, `parse` raises
BadLine, which contains the answer, and no other exception.  Of a duplicate member the last one counts.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from execserver.protocol.errors import RpcError

PARSE_ERROR = -32700
INVALID_REQUEST = -32600

_VERSION = b'"2.0"'
_ABSENT = msgspec.Raw()
NO_ID = msgspec.Raw(b"null")  # in the answer to a message without a usable id

# By this ids are compared: a text never equals a number.
Key = str | int | float


class Id(NamedTuple):
    """The id of a request: its JSON text and its value."""

    text: msgspec.Raw
    key: Key


class BadLine(Exception):
    """The line is no message; `answer` is the error message for its sender."""

    def __init__(self, code: int, reason: str, id_text: msgspec.Raw = NO_ID) -> None:
        super().__init__(reason)
        self.answer = encode_failure(id_text, code, reason)


class Request(NamedTuple):
    """A request, to be answered with the same id."""

    id: Id
    method: str
    params: msgspec.Raw | None


class Notification(NamedTuple):
    """A message without an answer."""

    method: str
    params: msgspec.Raw | None


class Reply(NamedTuple):
    """The answer to one of our requests; `result` is None for an error, `key` if it names no usable id."""

    key: Key | None
    result: msgspec.Raw | None


Message = Request | Notification | Reply


class _Members(msgspec.Struct):
    jsonrpc: msgspec.Raw = _ABSENT
    id: msgspec.Raw = _ABSENT
    method: msgspec.Raw = _ABSENT
    params: msgspec.Raw = _ABSENT
    result: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


_members = msgspec.json.Decoder(_Members)
_any_json = msgspec.json.Decoder(msgspec.Raw)
_text = msgspec.json.Decoder(str)
_id_value = msgspec.json.Decoder(str | int | float)


def parse(line: bytes) -> Message:
    """Return the message in a line.  Raises BadLine."""
    members = _decoded(line)
    if not members.method:
        return _reply(members)
    method = _method(members.method)
    id_ = _id(members.id) if members.id else None
    if bytes(members.jsonrpc) != _VERSION:
        reason = "Invalid Request: jsonrpc is not 2.0"
        raise BadLine(INVALID_REQUEST, reason, NO_ID if id_ is None else id_.text)
    params = members.params if bytes(members.params) not in (b"", b"null") else None
    return Notification(method, params) if id_ is None else Request(id_, method, params)


def encode_result(id_text: msgspec.Raw, result: bytes) -> bytes:
    """Return the answer to a request; `result` is JSON text."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (bytes(id_text), result)


def encode_error(id_text: msgspec.Raw, error: RpcError) -> bytes:
    """Return the answer to a request that failed."""
    return encode_failure(id_text, error.code, error.message, error.data)


def encode_failure(id_text: msgspec.Raw, code: int, message: str, data: object = None) -> bytes:
    """Return an error answer; `data` is omitted if it is None."""
    shown = message.encode("utf-8", "replace").decode()  # it may quote a lone surrogate
    error: dict[str, object] = {"code": code, "message": shown}
    if data is not None:
        error["data"] = data
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (bytes(id_text), msgspec.json.encode(error))


def encode_request(number: int, method: str, params: object) -> bytes:
    """Return one of our requests."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def encode_notification(method: str, params: object) -> bytes:
    """Return one of our notifications."""
    return msgspec.json.encode({"jsonrpc": "2.0", "method": method, "params": params})


def _decoded(line: bytes) -> _Members:
    if not line.isascii():
        # The decoder skips params without reading them, so it would accept broken UTF-8.
        try:
            line.decode()
        except UnicodeDecodeError:
            raise BadLine(PARSE_ERROR, "Parse error: the line is not UTF-8") from None
    try:
        return _members.decode(line)
    except RecursionError:
        raise _too_deep() from None
    except msgspec.DecodeError:
        raise _no_object(line) from None


def _no_object(line: bytes) -> BadLine:
    """Return the error for a line that is not JSON, or that is a JSON value of another kind."""
    try:
        _any_json.decode(line)
    except RecursionError:
        return _too_deep()
    except msgspec.DecodeError as error:
        return BadLine(PARSE_ERROR, f"Parse error: {error}")
    if line.lstrip().startswith(b"["):
        return BadLine(INVALID_REQUEST, "Invalid Request: batches are not supported")
    return BadLine(INVALID_REQUEST, "Invalid Request: not an object")


def _too_deep() -> BadLine:
    return BadLine(PARSE_ERROR, "Parse error: nested too deeply")


def _method(text: msgspec.Raw) -> str:
    try:
        return _text.decode(text)
    except msgspec.DecodeError:
        raise BadLine(INVALID_REQUEST, "Invalid Request: method is not a string") from None


def _id(text: msgspec.Raw) -> Id:
    try:
        return Id(text, _id_value.decode(text))
    except msgspec.DecodeError:
        raise BadLine(INVALID_REQUEST, "Invalid Request: id is neither a string nor a number") from None


def _reply(members: _Members) -> Reply:
    """Return a reply.  One with an unusable id is no error: two peers could answer each other for ever."""
    if not (members.result or members.error):
        raise BadLine(INVALID_REQUEST, "Invalid Request: method is missing")
    try:
        key = _id_value.decode(members.id)
    except msgspec.DecodeError:
        key = None
    return Reply(key, None if members.error else members.result)
