"""The client's JSON: messages, params, results and paths.

What the server sends is checked here; anything that does not match the contract is a `ProtocolViolation`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from execserver.client.errors import InvalidPath, ProtocolViolation
from execserver.client.rules.event_log import Closed, Event, Exited, Output, ReadState
from execserver.protocol import base64, envelope, lifting
from execserver.protocol.envelope import (
    MALFORMED_ID,
    ErrorMessage,
    MalformedMessage,
    Message,
    Notification,
    Response,
)
from execserver.protocol.errors import RpcError
from execserver.protocol.lifting import JsonText, Lifted
from execserver.protocol.paths import PathUri
from execserver.protocol.process import (
    ExecClosedNotification,
    ExecExitedNotification,
    ExecOutputDeltaNotification,
    ReadResponse,
)
from execserver.protocol.process_methods import PROCESS_CLOSED, PROCESS_EXITED, PROCESS_OUTPUT
from execserver.protocol.record import decode_value, encode_value
from execserver.protocol.sandbox import FileSystemSandboxContext

__all__ = [
    "MALFORMED_ID",
    "ErrorMessage",
    "Message",
    "Notification",
    "RemotePath",
    "Response",
    "Sandbox",
    "base64_text",
    "decode",
    "decode_event",
    "decode_message",
    "decode_output",
    "decode_read",
    "encode_notification",
    "encode_request",
    "error_data",
    "path_uri",
    "sandbox_context",
]

T = TypeVar("T")

RemotePath: TypeAlias = str | bytes | os.PathLike[str] | PathUri
"""A path on the server: absolute, or a `file:` URI."""

Sandbox: TypeAlias = FileSystemSandboxContext | dict[str, object] | None
"""What confines a call: the contract's object, as record or as JSON (wire contract, section 8.7)."""

_LONG: Final = 4096  # bytes
_encode = msgspec.json.Encoder(enc_hook=encode_value).encode


def encode_request(call_id: int, method: str, params: object, *, binary: bool = False) -> bytes:
    """Return a request; `params` is a record, plain JSON values or None.

    `binary`: in the binary form, if that saves something and the request has one.
    Raises TypeError or ValueError for params that JSON cannot hold.
    """
    if isinstance(params, msgspec.Struct):
        for name in params.__struct_fields__:
            value = getattr(params, name)
            if type(value) is bytes and len(value) >= _LONG:
                return _around(call_id, method, params, name, value, binary)
    return envelope.encode_request(call_id, method, msgspec.Raw(_encode(params)))


def _around(call_id: int, method: str, params: msgspec.Struct, name: str, data: bytes, binary: bool) -> bytes:
    """Return a request with long bytes, which no JSON encoder sees: it would copy them several times."""
    rest = _encode(msgspec.structs.replace(params, **{name: b""}))
    message = envelope.encode_request(call_id, method, msgspec.Raw(rest))
    if binary and (form := lifting.binary_form(message, data)) is not None:
        return form
    member = dict(zip(params.__struct_fields__, params.__struct_encode_fields__, strict=True))[name]
    # Inside a string the quotes would be escaped, so this is the member.
    before = message.index(b'"%b":""' % member.encode()) + len(member) + 4
    return b"".join((message[:before], base64.encode(data), message[before:]))


def encode_notification(method: str, params: object) -> bytes:
    """Return a notification."""
    return envelope.encode_notification(method, msgspec.Raw(_encode(params)))


def decode_message(message: bytes) -> Message:
    """Return a message from the server.  Raises `ProtocolViolation` for a malformed one."""
    try:
        return envelope.parse_reply(message)
    except MalformedMessage as error:
        raise ProtocolViolation(f"the server sent something that is no message: {error.reason}") from error


def error_data(message: ErrorMessage) -> object:
    """Return the plain JSON values that came with an error, None if there are none."""
    data = message.error.data
    anything: Any = Any
    return None if isinstance(data, msgspec.UnsetType) else decode(anything, data, "data of an error")


class _OutputMessage(msgspec.Struct):
    """A whole `process/output` message."""

    method: str
    params: ExecOutputDeltaNotification


OUTPUT_START: Final = b'{"method":"%b","params":{' % PROCESS_OUTPUT.name.encode()
_decode_output = msgspec.json.Decoder(_OutputMessage, dec_hook=decode_value).decode

# Everything before the chunk, as servers write it: an id without escapes, a number below 2**64.
_UP_TO_CHUNK = re.compile(
    re.escape(OUTPUT_START) + rb'"processId":"([ !#-\[\]-~]*)","seq":(0|[1-9][0-9]{0,18}),'
    rb'"stream":"(stdout|stderr|pty)","chunk":"'
)
BEHIND_CHUNK: Final = b'"}}'


def decode_output(message: bytes) -> tuple[str, Output] | None:
    """Return process id and event of a `process/output` in its usual form, None for anything else.

    One pass over the bytes instead of the four of `decode_message` and `decode_event`: output is nearly all a
    client receives.
    """
    if not message.startswith(OUTPUT_START):
        return None
    return _usual_output(message) or _any_output(message)


def _usual_output(message: bytes) -> tuple[str, Output] | None:
    """Find the members by position: a third of the time, since the chunk is not decoded as JSON.

    Valid base64 contains no quote, so nothing can hide behind the chunk.
    """
    found = _UP_TO_CHUNK.match(message)
    if found is None or not message.endswith(BEHIND_CHUNK, found.end()):
        return None
    try:
        chunk = base64.decode(str(memoryview(message)[found.end() : -len(BEHIND_CHUNK)], "ascii"))
    except ValueError:
        return None  # the slow path reports what is wrong
    return found[1].decode("ascii"), Output(int(found[2]), found[3].decode("ascii"), chunk)


def _any_output(message: bytes) -> tuple[str, Output] | None:
    try:
        note = _decode_output(message).params
    except (msgspec.DecodeError, RecursionError, ValueError, TypeError):
        return None  # the slow path reports what is wrong
    return note.process_id, Output(note.seq, note.stream.value, note.chunk)


ACCEPTED: Final = msgspec.Raw(b'{"status":"accepted"}')
_ANSWER_START, _ACCEPTED_END = b'{"id":', b',"result":%b}' % bytes(ACCEPTED)
_ID_DIGITS: Final = 18


def accepted_call(message: bytes) -> int | None:
    """Return the id of a call that is answered with `ACCEPTED`, as every key is; None for anything else.

    A test compares it with `decode_message`, which takes ten times as long.
    """
    if not (message.endswith(_ACCEPTED_END) and message.startswith(_ANSWER_START)):
        return None
    digits = message[len(_ANSWER_START) : -len(_ACCEPTED_END)]
    if not digits.isdigit() or len(digits) > _ID_DIGITS or (digits.startswith(b"0") and digits != b"0"):
        return None
    return int(digits)


@lru_cache(maxsize=128)
def _decoder(wanted: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(wanted, dec_hook=decode_value)


def decode(wanted: type[T], text: JsonText, what: str) -> T:
    """Return a result or params as `wanted`; `what` names it in the `ProtocolViolation`."""
    try:
        key: Any = wanted
        decoder = _decoder(key)
        found: T = text.decoded(decoder) if isinstance(text, Lifted) else decoder.decode(text)
    except (msgspec.DecodeError, RecursionError, RpcError, ValueError, TypeError) as error:
        raise ProtocolViolation(f"the server's {what} does not fit: {error}") from error
    return found


def decode_event(method: str, params: JsonText) -> tuple[str, Event] | None:
    """Return the process id and the event of a process notification, None for any other notification."""
    if method == PROCESS_OUTPUT.name:
        note = decode(ExecOutputDeltaNotification, params, method)
        return note.process_id, Output(note.seq, note.stream.value, note.chunk)
    if method == PROCESS_EXITED.name:
        end = decode(ExecExitedNotification, params, method)
        why = (given(end.ended), given(end.usage))
        return end.process_id, Exited(end.seq, end.exit_code, end.sandbox_denied, *why)
    if method == PROCESS_CLOSED.name:
        last = decode(ExecClosedNotification, params, method)
        return last.process_id, Closed(last.seq)
    return None


def decode_read(answer: ReadResponse, announces_gaps: bool) -> ReadState:
    """Return a `process/read` answer as the client's record; only some servers report what they dropped."""
    return ReadState(
        chunks=tuple(Output(chunk.seq, chunk.stream.value, chunk.chunk) for chunk in answer.chunks),
        next_seq=answer.next_seq,
        exited=answer.exited,
        exit_code=answer.exit_code,
        closed=answer.closed,
        sandbox_denied=answer.sandbox_denied,
        failure=answer.failure,
        oldest_seq=answer.oldest_seq if announces_gaps else None,
        lost_bytes=answer.lost_bytes if announces_gaps else None,
        ended=given(answer.ended),
        usage=given(answer.usage),
    )


def given(member: T | msgspec.UnsetType | None) -> T | None:
    """Return a member that a server may leave out."""
    return None if isinstance(member, msgspec.UnsetType) else member


def check_bytes(data: object) -> None:
    """Raise TypeError for text in the place of bytes: it would be sent as if it were their base64."""
    if isinstance(data, str):
        raise TypeError("bytes are needed here, not text: encode it")


def check_words(words: Iterable[object]) -> None:
    """Raise TypeError for bytes in the place of text: their base64 would be sent."""
    for word in words:
        if isinstance(word, bytes | bytearray | memoryview):
            raise TypeError(f"text is needed here, not bytes: {word!r}")


def path_uri(path: RemotePath) -> PathUri:
    """Return a path as the contract has it.  Raises `InvalidPath` for a relative one."""
    if isinstance(path, PathUri):
        return path
    native = os.fspath(path)
    if isinstance(native, str) and native.startswith("file:"):
        try:
            return PathUri.parse(native)
        except RpcError as error:
            raise InvalidPath(f"{native!r}: {error.message}") from error
    raw = os.fsencode(native)
    if not raw.startswith(b"/"):
        raise InvalidPath(f"a path on the server is absolute or a file: URI, not {native!r}")
    return PathUri.from_native(raw)


def base64_text(data: bytes) -> str:
    """Return bytes as the contract's base64."""
    return base64.encode(data).decode("ascii")


def sandbox_context(sandbox: Sandbox) -> FileSystemSandboxContext | None:
    """Return a sandbox context as a record.  Raises `ValueError` if its members are not valid."""
    if sandbox is None or isinstance(sandbox, FileSystemSandboxContext):
        return sandbox
    try:
        return FileSystemSandboxContext.from_json(sandbox)
    except RpcError as error:
        raise ValueError(f"not a sandbox: {error.message}") from error
