"""WebSocket frames of the server role: bytes from the peer in, whole messages out.

The `websockets` library does the parsing, masking, control frames and close handshake, and also decides what
is wrong with a frame.  Three kinds of frame are handled here instead.  One is a message in one whole frame,
as nearly all are: a short one costs four times as much in the library, a tenth of a small request, and a long
one is copied twice more there.  Another are pings and pongs: one read may hold 60,000 of them, for which the
library made all others wait a second.  The last is a Close frame with nothing wrong in it, with which most
connections end.
This module adds what the contract asks of a server: limits per frame, per message and on the number of
fragments, text that is UTF-8, and frame headers for replies that are produced in pieces.  No I/O: the owner
of the socket feeds and sends.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from websockets.speedups import apply_mask

from execserver.wire.close_codes import INVALID_DATA, MESSAGE_TOO_BIG

if TYPE_CHECKING:
    from websockets.frames import Frame
    from websockets.protocol import Protocol

    from execserver.handover.records import PackedFrames

_TEXT_FINAL = 0x81
_WHOLE_MESSAGES = (_TEXT_FINAL, 0x82)  # text and binary, in one frame and without reserved bits
_PING, _PONG, _CLOSE = 0x89, 0x8A, 0x88
_CONT, _TEXT, _BINARY = 0, 1, 2
_CLOSE_CODES = (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014)
_OTHER_CLOSE_CODES = range(3000, 5000)  # of libraries and of applications
_MASKED = 0x80
_MAX_CONTROL_BYTES = 125
_LEAST_BYTES = 6  # of a frame with a mask: two bytes and the mask
_SHORT_BYTES = 64 * 1024 - 1  # payload of what is taken without the library
_MAX_REASON_BYTES = 123  # a control frame holds 125 bytes, two of them the code
PING_FRAME: Final = b"\x89\x00"
_SHORT, _MEDIUM, _LONG = Struct(">BB").pack, Struct(">BBH").pack, Struct(">BBQ").pack
_SHORT_HEADS: Final = [_SHORT(_TEXT_FINAL, length) for length in range(126)]
_EMPTY_PONG = b"\x8a\x00"


class FrameLimits(NamedTuple):
    """The limits of one peer: payload bytes of a frame, bytes of a message, fragments of a message."""

    frame_bytes: int
    message_bytes: int
    fragments: int


def frame_header(length: int, *, first: bool = True, final: bool = True, binary: bool = False) -> bytes:
    """Return the header of an unmasked frame of `length` payload bytes, of text, or of a continuation."""
    head = (0x80 if final else 0) | (0x01 + binary if first else 0)
    if length < 126:
        return _SHORT(head, length)
    return _MEDIUM(head, 126, length) if length < 65536 else _LONG(head, 127, length)


def text_frame(message: bytes) -> bytes:
    """Return a message of less than 64 KiB as an unmasked text frame, as `frame_header` would begin it."""
    length = len(message)
    return (_SHORT_HEADS[length] if length < 126 else _MEDIUM(_TEXT_FINAL, 126, length)) + message


class ServerFrames:
    """The inbound half of one accepted WebSocket connection.

    `feed` returns the messages that became complete, oldest first; the owner may try `lone` before.  Bytes to
    send in answer (pongs, the echo of a Close frame) wait in `control`.  `finished` is True once no further
    message can come; `failure` then says why, or is None after an orderly close.
    """

    __slots__ = (
        "_begun",
        "_fragments",
        "_head",
        "_head_size",
        "_large",
        "_limits",
        "_long_bytes",
        "_owed",
        "_parts",
        "_peer_closed",
        "_protocol",
        "_short_bytes",
        "_text",
        "control",
        "failure",
        "finished",
    )

    def __init__(self, limits: FrameLimits) -> None:
        self._limits = limits
        self._protocol: Protocol | None = None
        self._long_bytes = min(limits.frame_bytes, limits.message_bytes)
        self._short_bytes = min(_SHORT_BYTES, self._long_bytes)
        self._begun = b""  # a header that is not complete
        self._head, self._head_size = b"", 0  # the header of that frame as far as it has come, and its size
        self._owed = 0  # bytes of the present frame that have not come, or the library still has to get
        self._large: bytearray | None = None  # the payload of a whole message as far as it has come
        self._parts: list[bytes] = []
        self._fragments = 0  # of the message that is being put together
        self._text = False
        self._peer_closed = False  # by a Close frame that the library has not seen
        self.control: list[bytes] = []
        self.finished = False
        self.failure: str | None = None

    @property
    def peer_closed(self) -> bool:
        """True once the peer has sent a Close frame."""
        return self._peer_closed or (self._protocol is not None and self._protocol.close_rcvd is not None)

    def lone(self, buffer: bytearray, size: int) -> bytes | None:
        """Return the message of which the first `size` bytes of a buffer are the frame, and nothing else.

        None is any other case, also a frame that would be refused: then nothing has happened, and `feed` must
        have the same bytes.
        """
        # Nearly all reads are one short message, and `feed` would take twice as long.  A test compares them.
        if size < _LEAST_BYTES or self._begun or self._owed or self._fragments or self.finished:
            return None
        length, begin = buffer[1] - _MASKED, 6  # without a mask it is below 0
        if length == 126:
            length, begin = buffer[2] << 8 | buffer[3], 8
        elif length == 127:
            return None
        if begin + length != size or length > self._short_bytes or buffer[0] not in _WHOLE_MESSAGES:
            return None
        message = apply_mask(buffer[begin:size], buffer[begin - 4 : begin])
        return message if message.isascii() or buffer[0] != _TEXT_FINAL or _is_utf8(message) else None

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Take bytes as they came from the socket; return the messages they completed."""
        messages: list[bytes] = []
        if self._begun:
            data = self._begun + data
            self._begun = b""
        at = 0
        # What follows a protocol error or a Close frame is not delivered.
        while at < len(data) and not self.finished:
            if self._owed:
                part = data[at : at + self._owed]
                at += len(part)
                self._take_owed(part, messages)
                continue
            begin, end = _borders(data, at)
            if not end:
                self._begun = bytes(data[at:])
                break
            if end <= len(data) and _is_ping_or_pong(data, at):
                if data[at] == _PING:
                    self._answer_ping(data, begin, end)
                at = end
            elif end <= len(data) and data[at] == _CLOSE and self._take_close(data, at, begin, end):
                at = end
            elif end <= len(data) and end - begin <= self._short_bytes and self._is_whole(data, at):
                self._text = data[at] == _TEXT_FINAL
                self._take_short(data, begin, end, messages)
                at = end
            elif self._is_whole(data, at) and end - begin <= self._long_bytes:
                if begin > len(data):
                    self._begun = bytes(data[at:])
                    break
                self._head, self._head_size = bytes(data[at:begin]), begin - at
                self._large, self._owed = bytearray(), end - begin
                at = begin
            else:
                self._head, self._head_size = b"", begin - at
                self._owed = end - at
        return messages

    def close(self, code: int, reason: str) -> None:
        """Put a Close frame into `control`, unless one was sent; nothing is parsed after this."""
        if self._peer_closed:
            return
        from execserver.wire.server_protocol import fail

        protocol = self._library()
        fail(protocol, code, _fit(reason))
        self._collect_control(protocol)
        self.finished = True

    def pack(self) -> PackedFrames:
        """Return what `restore` takes; not once it is `finished`."""
        from execserver.handover.records import PackedFrames

        # The library has taken the header, as soon as that is whole, and waits for the whole payload.
        head = self._head if self._owed else b""
        has_payload = head and len(head) == self._head_size
        payload = b""
        if has_payload:
            payload = bytes(self._library().reader.buffer if self._large is None else self._large)
        return PackedFrames(
            *(self._begun, head, self._head_size, payload, self._owed),
            *(list(self._parts), self._fragments, self._text),
        )

    def restore(self, packed: PackedFrames) -> None:
        """Become what was packed; called before anything is fed."""
        opcode = _TEXT if packed.is_text else _BINARY
        for part in packed.parts:
            self._feed_library(_unmasked(opcode, part), [])
            opcode = _CONT
        is_whole = len(packed.head) == packed.head_size and not packed.fragments and packed.head
        if packed.owed and is_whole and packed.head[0] in _WHOLE_MESSAGES and packed.head[1] & _MASKED:
            self._large = bytearray(packed.payload)
        elif packed.owed:
            self._feed_library(packed.head + packed.payload, [])
        self._begun, self._owed = packed.begun, packed.owed
        self._head, self._head_size = packed.head, packed.head_size
        self._fragments, self._text = packed.fragments, packed.is_text

    def restore_finished(self, *, peer_closed: bool) -> None:
        """Become what is `finished`, of which `pack` says nothing."""
        self.finished, self._peer_closed = True, peer_closed

    def let_go(self) -> None:
        """Free an unfinished message and the library's reference cycles; nothing is parsed after this."""
        self.finished = True
        self._begun, self._parts, self._large = b"", [], None
        if self._protocol is not None:
            from execserver.wire.server_protocol import let_go

            let_go(self._protocol)

    def _library(self) -> Protocol:
        """Return the library's side of the connection, made at the first frame that is not handled here."""
        # 49,000 instructions, 7 % of a connection that ends without a Close frame.
        if self._protocol is None:
            from execserver.wire.server_protocol import server_protocol

            self._protocol = server_protocol(self._limits.message_bytes, self._limits.frame_bytes)
        return self._protocol

    def _is_whole(self, data: bytes | bytearray | memoryview, at: int) -> bool:
        """True if the frame is a whole message and has nothing that the library must judge."""
        # The library refuses frames without a mask, and a message that begins inside another one.
        return not self._fragments and data[at] in _WHOLE_MESSAGES and data[at + 1] & _MASKED != 0

    def _answer_ping(self, data: bytes | bytearray | memoryview, begin: int, end: int) -> None:
        if begin == end:
            self.control.append(_EMPTY_PONG)
            return
        payload = apply_mask(bytes(data[begin:end]), bytes(data[begin - 4 : begin]))
        self.control.append(bytes((_PONG, end - begin)) + payload)

    def _take_close(self, data: bytes | bytearray | memoryview, at: int, begin: int, end: int) -> bool:
        """Answer a Close frame as the library does; return False if that must judge it."""
        # Most connections end with one, and making the library's side takes longer than an upgrade's answer.
        fits = end - begin <= min(_MAX_CONTROL_BYTES, self._short_bytes)
        if self._protocol is not None or not fits or not data[at + 1] & _MASKED:
            return False
        payload = apply_mask(bytes(data[begin:end]), bytes(data[begin - 4 : begin]))
        if payload and not _is_close(payload):
            return False
        self.control.append(bytes((_CLOSE, len(payload))) + payload)
        self._peer_closed = self.finished = True
        return True

    def _take_short(
        self, data: bytes | bytearray | memoryview, begin: int, end: int, messages: list[bytes]
    ) -> None:
        message = self._checked(apply_mask(memoryview(data)[begin:end], bytes(data[begin - 4 : begin])))
        if message is not None:
            messages.append(message)

    def _take_owed(self, part: bytes | bytearray | memoryview, messages: list[bytes]) -> None:
        """Take more of the present frame."""
        self._owed -= len(part)
        if self._large is None:
            if len(self._head) < self._head_size:
                self._head += part[: self._head_size - len(self._head)]
            self._feed_library(part, messages)
            return
        self._large += part  # it grows as the bytes come: a mere announcement costs nothing
        if not self._owed:
            payload, self._large = self._large, None
            self._text = self._head[0] == _TEXT_FINAL
            message = self._checked(apply_mask(payload, self._head[-4:]))
            if message is not None:
                messages.append(message)

    def _feed_library(self, data: bytes | bytearray | memoryview, messages: list[bytes]) -> None:
        from execserver.wire.server_protocol import frames

        protocol = self._library()
        for frame in frames(protocol, data):
            message = self._take(frame)
            if message is not None:
                messages.append(message)
            if self.failure is not None:
                return
        self._collect_control(protocol)

    def _take(self, frame: Frame) -> bytes | None:
        opcode = frame.opcode
        if opcode in (_TEXT, _BINARY):
            self._text = opcode == _TEXT
            if frame.fin:
                return self._checked(bytes(frame.data))
            self._parts = [bytes(frame.data)]
            self._fragments = 1
        elif opcode == _CONT:
            self._fragments += 1
            if self._fragments > self._limits.fragments:
                self._fail(MESSAGE_TOO_BIG, f"more than {self._limits.fragments} fragments in one message")
                return None
            self._parts.append(bytes(frame.data))
            if frame.fin:
                whole = b"".join(self._parts)
                self._parts, self._fragments = [], 0
                return self._checked(whole)
        return None

    def _checked(self, message: bytes) -> bytes | None:
        if self._text and not (message.isascii() or _is_utf8(message)):
            self._fail(INVALID_DATA, "a text message is not UTF-8")
            return None
        return message

    def _fail(self, code: int, reason: str) -> None:
        self.close(code, reason)
        self.failure = reason

    def _collect_control(self, protocol: Protocol) -> None:
        """Move what the library wants to send to `control`; an empty entry means the end."""
        for data in protocol.data_to_send():
            if data:
                self.control.append(data)
            else:
                self.finished = True
        if protocol.parser_exc is not None and self.failure is None:
            from execserver.wire.server_protocol import explained

            self.failure = explained(protocol.parser_exc)


def _borders(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """Return where the payload of a frame begins and where it ends; (0, 0) if its length is incomplete."""
    begin = at + 2
    if len(data) < begin:
        return 0, 0
    masked_length = data[at + 1]
    length = masked_length & ~_MASKED
    if length >= 126:
        wide = 2 if length == 126 else 8
        if len(data) < begin + wide:
            return 0, 0
        length = int.from_bytes(data[begin : begin + wide], "big")
        begin += wide
    if masked_length & _MASKED:
        begin += 4
    return begin, begin + length


def _unmasked(opcode: int, part: bytes) -> bytes:
    """Return a part of a message as a client could have sent it: with a mask that changes nothing."""
    head = bytearray(frame_header(len(part), final=False))
    head[0] = opcode
    head[1] |= _MASKED
    return bytes(head) + bytes(4) + part


def _is_ping_or_pong(data: bytes | bytearray | memoryview, at: int) -> bool:
    """True if a frame whose length is known is a valid ping or pong."""
    # A longer one, or one without a mask, is a protocol error that the library reports.
    return data[at] in (_PING, _PONG) and _MASKED <= data[at + 1] <= _MASKED + _MAX_CONTROL_BYTES


def _is_close(payload: bytes) -> bool:
    """True if the payload of a Close frame has a code that may be sent, and a reason that is UTF-8."""
    code = int.from_bytes(payload[:2], "big")
    if code not in _CLOSE_CODES and code not in _OTHER_CLOSE_CODES:
        return False  # also what is one byte long
    return _is_utf8(payload[2:])


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fit(reason: str) -> str:
    """Cut a reason to what fits a control frame, at a character boundary."""
    return reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
