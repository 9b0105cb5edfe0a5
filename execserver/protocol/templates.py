"""Messages with output, built as bytes around base64 text: no JSON encoder reads a payload.

What stays the same for one process or one HTTP stream is rendered once; a message is then two constants, a
number and the base64 text.  Members and their order are those of the records in `process`, `http`, `files`
and `legacy`; a test compares every template with its record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from execserver.protocol import lifting
from execserver.protocol.base64 import encode
from execserver.protocol.methods import (
    COMMAND_EXEC_EXITED,
    COMMAND_EXEC_OUTPUT_DELTA,
    HTTP_REQUEST_BODY_DELTA,
    PROCESS_CLOSED,
    PROCESS_EXITED,
    PROCESS_OUTPUT,
    NotificationMethod,
)
from execserver.protocol.own_methods import PORT_BYTES
from execserver.protocol.process import ExecOutputStream
from execserver.protocol.resource_limits import ProcessEnd, ResourceUsage

Parts = tuple[bytes, ...]

_SHORT_BYTES = 4096  # of data: to copy them once more is cheaper than to join parts
_STREAMS = {stream.value: stream.value.encode() for stream in ExecOutputStream}
_PROCESS, _COMMAND_EXEC = "process", "command/exec"
_TRUTH = {False: b"false", True: b"true"}
_text = msgspec.json.Encoder().encode


def _head(method: NotificationMethod[Any], key: bytes, value: str) -> bytes:
    """Return the beginning of a notification, up to the comma behind its first member."""
    return b'{"method":%b,"params":{"%b":%b' % (_text(method.name), key, _text(value))


class ProcessTemplates:
    """The three notifications of one process."""

    __slots__ = ("_closed", "_exited", "_output")

    def __init__(self, process_id: str) -> None:
        self._output = _head(PROCESS_OUTPUT, b"processId", process_id) + b',"seq":'
        self._exited = _head(PROCESS_EXITED, b"processId", process_id) + b',"seq":'
        self._closed = _head(PROCESS_CLOSED, b"processId", process_id) + b',"seq":'

    def output(self, stream: str, seq: int, data: bytes) -> Parts:
        """Return `process/output` in parts: the head, the base64 text, and the end; a short one in one."""
        if len(data) < _SHORT_BYTES:
            values = self._output, seq, _STREAMS[stream], encode(data)
            return (b'%b%d,"stream":"%b","chunk":"%b"}}' % values,)
        head = b'%b%d,"stream":"%b","chunk":"' % (self._output, seq, _STREAMS[stream])
        return (head, encode(data), b'"}}')

    def exited(
        self,
        seq: int,
        exit_code: int,
        sandbox_denied: bool = False,
        sandbox_refusal: str = "",
        end: bytes = b"",
    ) -> bytes:
        """Return `process/exited`; an empty `sandbox_refusal` is omitted, `end` is of `end_members`."""
        tail = (exit_code, _TRUTH[sandbox_denied], _refusal(sandbox_refusal), end)
        return b'%b%d,"exitCode":%d,"sandboxDenied":%b%b%b}}' % (self._exited, seq, *tail)

    def closed(self, seq: int) -> bytes:
        """Return `process/closed`."""
        return b"%b%d}}" % (self._closed, seq)

    def pack(self) -> tuple[str, dict[str, int] | None]:
        """Return what `unpacked` makes the same templates of."""
        return _PROCESS, None


class CommandExecTemplates:
    """The notifications of one process of the first contract; used like ProcessTemplates."""

    __slots__ = ("_exited", "_output")

    def __init__(self, process_id: str) -> None:
        self._output = _head(COMMAND_EXEC_OUTPUT_DELTA, b"processId", process_id) + b',"stream":"'
        self._exited = _head(COMMAND_EXEC_EXITED, b"processId", process_id) + b',"exitCode":'

    def output(self, stream: str, seq: int, data: bytes) -> Parts:
        """Return `command/exec/outputDelta` in parts; there is no `seq` in it."""
        return (b'%b%b","chunk":"' % (self._output, _STREAMS[stream]), encode(data), b'"}}')

    def exited(
        self,
        seq: int,
        exit_code: int,
        sandbox_denied: bool = False,
        sandbox_refusal: str = "",
        end: bytes = b"",
    ) -> bytes:
        """Return `command/exec/exited`, which has no members about the sandbox or the end."""
        return b"%b%d}}" % (self._exited, exit_code)

    def closed(self, seq: int) -> bytes:
        """Return an empty text, which is not sent: the first contract has no such notification."""
        return b""

    def pack(self) -> tuple[str, dict[str, int] | None]:
        """Return what `unpacked` makes the same templates of."""
        return _COMMAND_EXEC, None


class CappedTemplates(CommandExecTemplates):
    """The notifications of one process with at most `left` bytes of each stream; the rest is omitted."""

    __slots__ = ("_left",)

    def __init__(self, process_id: str, left: dict[str, int]) -> None:
        super().__init__(process_id)
        self._left = dict(left)

    def output(self, stream: str, seq: int, data: bytes) -> Parts:
        """Return the notification of the part of a chunk that may still be sent, or nothing."""
        data = data[: self._left[stream]]
        self._left[stream] -= len(data)
        return super().output(stream, seq, data) if data else ()

    def pack(self) -> tuple[str, dict[str, int] | None]:
        """Return what `unpacked` makes the same templates of."""
        return _COMMAND_EXEC, dict(self._left)


def unpacked(
    process_id: str, kind: str, left: dict[str, int] | None
) -> ProcessTemplates | CommandExecTemplates:
    """Return the templates of which `pack` has told kind and what is left of each stream."""
    if kind == _PROCESS:
        return ProcessTemplates(process_id)
    return CommandExecTemplates(process_id) if left is None else CappedTemplates(process_id, left)


class BodyDeltaTemplates:
    """The notifications of one streamed HTTP body."""

    __slots__ = ("_head",)

    def __init__(self, request_id: str) -> None:
        self._head = _head(HTTP_REQUEST_BODY_DELTA, b"requestId", request_id) + b',"seq":'

    def piece(self, seq: int, data: bytes) -> Parts:
        """Return one piece of the body in parts."""
        head = b'%b%d,"deltaBase64":"' % (self._head, seq)
        return (head, encode(data), b'","done":false,"error":null}}')

    def last(self, seq: int, error: str | None = None) -> bytes:
        """Return the end of the stream, with the reason if it came too early."""
        return b'%b%d,"deltaBase64":"","done":true,"error":%b}}' % (self._head, seq, _text(error))


class PortTemplates:
    """The data of one forwarded connection; `in_binary` returns the same message in the binary form."""

    __slots__ = ("_has_binary_form", "_head")

    def __init__(self, port_id: str) -> None:
        self._head = _head(PORT_BYTES, b"portId", port_id) + b',"offset":'
        self._has_binary_form: bool | None = None  # found out when it is first asked for

    @property
    def have_binary_form(self) -> bool:
        """Whether the id is plain enough for that form."""
        if self._has_binary_form is None:
            self._has_binary_form = lifting.has_binary_form(b'%b0,"chunk":"","eof":false}}' % self._head)
        return self._has_binary_form

    def data(self, offset: int, data: bytes, *, eof: bool) -> Parts:
        """Return `port/bytes` in parts."""
        return (b'%b%d,"chunk":"' % (self._head, offset), encode(data), b'","eof":%b}}' % _TRUTH[eof])

    def in_binary(self, offset: int, data: bytes) -> Parts:
        """Return `port/bytes`, which is not the last one, in parts."""
        return (lifting.binary_head(b'%b%d,"chunk":"","eof":false}}' % (self._head, offset)), data)


class OutputPage(Protocol):
    """What a read gets of the retained output."""

    @property
    def chunks(self) -> Iterable[tuple[int, str, bytes]]:
        """`seq`, stream and bytes of each chunk."""

    @property
    def next_seq(self) -> int:
        """The number at which the next read continues."""


class OutputGaps(Protocol):
    """What is known about output that was dropped."""

    @property
    def oldest_seq(self) -> int:
        """The number from which on nothing was dropped."""

    @property
    def lost_bytes(self) -> int:
        """The number of bytes dropped before it."""


class ReadState(Protocol):
    """What a read reports about the process."""

    @property
    def exited(self) -> bool:
        """Whether the session leader was reaped."""

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it runs."""

    @property
    def closed(self) -> bool:
        """Whether nothing can follow."""

    @property
    def log(self) -> OutputGaps:
        """The retained output."""

    @property
    def sandbox_denied(self) -> bool:
        """Whether the sandbox probably made it fail."""

    @property
    def sandbox_refusal(self) -> str:
        """Why the program did not run in the sandbox, if that is certain; else empty."""

    @property
    def end_text(self) -> bytes:
        """Why it ended and what it used, as `end_members` has it; empty if nobody asked."""


def end_members(end: ProcessEnd | None, usage: ResourceUsage) -> bytes:
    """Return why a process ended and what it used as further members of a message."""
    return b',"ended":%b,"usage":%b' % (_text(end), _text(usage))


def _refusal(text: str) -> bytes:
    return b',"sandboxRefusal":%b' % _text(text) if text else b""


def read_result(page: OutputPage, state: ReadState) -> msgspec.Raw:
    """Return the result of `process/read`."""
    chunks = b",".join(
        b'{"seq":%d,"stream":"%b","chunk":"%b"}' % (seq, _STREAMS[stream], encode(data))
        for seq, stream, data in page.chunks
    )
    exit_code = b"null" if state.exit_code is None else b"%d" % state.exit_code
    return msgspec.Raw(
        b'{"chunks":[%b],"nextSeq":%d,"exited":%b,"exitCode":%b,"closed":%b,"failure":null,'
        b'"sandboxDenied":%b,"oldestSeq":%d,"lostBytes":%d%b%b}'
        % (
            chunks,
            page.next_seq,
            _TRUTH[state.exited],
            exit_code,
            _TRUTH[state.closed],
            _TRUTH[state.sandbox_denied],
            state.log.oldest_seq,
            state.log.lost_bytes,
            _refusal(state.sandbox_refusal),
            state.end_text,
        )
    )
