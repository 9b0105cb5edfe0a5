"""WebSocket frames of the client role: received bytes cut into messages, and messages to send.

Only a message in one whole frame, as all are on a relay, is handled here; every other frame goes to the
`websockets` library, which also decides what is wrong with one.  The library would copy such a message three
times more.  No I/O: the owner of the socket reads into `space` and reports how much came.

Outgoing frames are masked, each with a fresh mask; header and payload of a large frame stay separate, which
saves a copy before the write.

The buffer is bounded: a frame that does not fit, or is longer than a message may be, goes to the library in
pieces as they come.  It is small until one read fills it, and small again once some reads in a row would have
fitted: an idle connection, which hears pings, holds no more than `SMALL_BYTES`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from struct import Struct
from typing import Final

BINARY_MESSAGE: Final = 0x82
TEXT_MESSAGE: Final = 0x81
BUFFER_BYTES: Final = 320 * 1024
SMALL_BYTES: Final = 8 * 1024
SHORT_BYTES: Final = 4096  # header and payload of a longer frame stay separate

_SHORT_HEAD, _MEDIUM_HEAD, _LONG_HEAD = (Struct(form).pack for form in (">BB4s", ">BBH4s", ">BBQ4s"))
_FRAGMENT_BYTES: Final = 1024 * 1024
_CONTINUED, _CONTINUED_FINAL = 0x00, 0x80
_FINAL: Final = 0x80
_CLOSE: Final = 0x88
_CONTROL: Final = 0x08
_MASKED: Final = 0x80
_MEDIUM: Final = 126  # the length follows in two bytes
_MAX_HEAD: Final = 4  # of a frame of up to 64 KiB without a mask
_SMALL_READS: Final = 8  # in a row give a large buffer back: fewer, and a stream with pauses would make many
_MASKS_BYTES: Final = 1024
_LITTLE_BYTES: Final = 1024
_FEW: Final = 32
_NORMAL_CLOSURE: Final = 1000

# The library's, in C, from the first long message on, or behind some short ones: loading it takes longer than
# masking those.
_apply_mask: Callable[[bytes, bytes], bytes] | None = None
_masked_here = 0
_masks: list[bytes] = []  # random and not used yet: asking the system for each frame would cost more


class ClientFrames:
    """The inbound half of one connection.

    The next bytes are read into `space`, which is never empty before `let_go`.

    `message` takes each message, in order; `other` takes bytes for the library, of one frame at most, and
    returns False once nothing more should be read.  Neither is called after that.
    """

    __slots__ = (
        "_buffer",
        "_bytes",
        "_held",
        "_in_fragments",
        "_max_bytes",
        "_message",
        "_other",
        "_owed",
        "_small_reads",
        "_whole",
        "space",
    )

    def __init__(
        self,
        whole: int,
        max_bytes: int,
        message: Callable[[bytes], None],
        other: Callable[[bytes], bool],
    ) -> None:
        """Take the callbacks; `whole` is the first byte of a message in one frame.

        With `BINARY_MESSAGE` text goes to the library, with `TEXT_MESSAGE` both kinds are taken.
        """
        self._whole: tuple[int, ...] = (
            (BINARY_MESSAGE,) if whole == BINARY_MESSAGE else (TEXT_MESSAGE, BINARY_MESSAGE)
        )
        self._max_bytes = max_bytes
        self._message = message
        self._other = other
        self._bytes = bytearray(SMALL_BYTES)
        self._buffer = self.space = memoryview(self._bytes)
        self._small_reads = 0  # in a row, into a large buffer
        self._held = 0  # bytes of an incomplete frame at the start of the buffer
        self._owed = 0  # bytes of the present frame that the library still has to get
        self._in_fragments = False

    def take(self, data: bytes) -> None:
        """Take bytes that were not read into `space`."""
        rest = memoryview(data)
        while rest and (space := self.space):
            part = rest[: len(space)]
            space[: len(part)] = part
            self.arrived(len(part))
            rest = rest[len(part) :]

    def lone(self, count: int) -> bytes | None:
        """Return the message of which the bytes that were read into `space` are the frame, and nothing else.

        None is any other case: then nothing has happened, and `arrived` must have the same count.
        """
        # As nearly all reads are; `arrived` takes three times as long.  A test compares the two.
        data = self._bytes
        if (
            self._held
            or self._owed
            or self._in_fragments
            or not _MAX_HEAD <= count < SMALL_BYTES == len(data)
        ):
            return None
        begin, length = 2, data[1]  # with a mask it is above 127
        if length == _MEDIUM:
            begin, length = 4, data[2] << 8 | data[3]
        elif length > _MEDIUM:
            return None
        if begin + length != count or length > self._max_bytes or data[0] not in self._whole:
            return None
        return self._buffer[begin:count].tobytes()

    def arrived(self, count: int) -> None:
        """Take the bytes that were read into `space`."""
        size = len(self._buffer)
        end = min(self._held + count, size)  # the buffer is gone if the connection has ended
        at = self._take_short(end)
        while at < end:
            after = self._step(at, end)
            if not after:
                break
            at = after
        self._held = max(0, end - at)
        if at and self._held:
            self._buffer[: self._held] = self._buffer[at:end]
        if size > SMALL_BYTES or end == size:
            self._resize(end)
        self.space = self._buffer[self._held :] if self._held else self._buffer

    def let_go(self) -> None:
        """Free the buffer and the callbacks; nothing can be taken after this."""
        self._bytes = bytearray()
        self._buffer = self.space = memoryview(b"")
        self._whole = ()
        self._message, self._other = _ignored, _refused

    def _resize(self, end: int) -> None:
        """Have a buffer that fits what comes: the last read ended at `end` of the present one."""
        size = len(self._buffer)
        if not size:
            return
        self._small_reads = self._small_reads + 1 if end < SMALL_BYTES else 0
        wanted = SMALL_BYTES if self._small_reads >= _SMALL_READS else BUFFER_BYTES
        if wanted != size:
            held = bytes(self._buffer[: self._held])
            self._bytes = bytearray(wanted)
            self._buffer = memoryview(self._bytes)
            self._buffer[: len(held)] = held
            self._small_reads = 0

    def _take_short(self, end: int) -> int:
        """Take the short messages in one frame each at the front of the buffer; return where they end.

        It is what `_step` would do with them, at a third of the cost.  A test compares the two.
        """
        data, at = self._bytes, 0
        if self._owed or self._in_fragments:
            return 0
        while end - at >= _MAX_HEAD and data[at] in self._whole:
            begin, length = at + 2, data[at + 1]  # with a mask it is above 127
            if length > _MEDIUM:
                break
            if length == _MEDIUM:
                begin, length = at + 4, data[at + 2] << 8 | data[at + 3]
            after = begin + length
            if after > end or length > self._max_bytes:
                break
            self._message(self._buffer[begin:after].tobytes())
            at = after
        return at

    def _step(self, at: int, end: int) -> int:
        """Take the frame that begins at `at`, or a part of it; return where the next step begins.

        0 means that more bytes must come first, a value beyond `end` that nothing more is read.
        """
        view = self._buffer
        if not self._owed:
            begin, after = _borders(view, at, end)
            if not begin:
                return 0
            is_too_long = after - begin > self._max_bytes or after - at > BUFFER_BYTES
            if after > end and not is_too_long:
                return 0
            # A masked frame from a server, or a message inside another one, is for the library to refuse.
            if view[at] in self._whole and not (is_too_long or self._in_fragments or view[at + 1] & _MASKED):
                self._message(bytes(view[begin:after]))
                return after
            self._note_fragments(view[at])
            self._owed = after - at
        after = min(at + self._owed, end)
        self._owed -= after - at
        if self._other(bytes(view[at:after])):
            return after
        self._message, self._other = _ignored, _refused  # what is still read into the buffer is dropped
        self._whole = ()
        return end + 1

    def _note_fragments(self, lead: int) -> None:
        if not lead & _CONTROL:
            self._in_fragments = not lead & _FINAL


def _ignored(message: bytes) -> None:
    """Take a message that came after the end."""


def _refused(data: bytes) -> bool:
    return False


def _borders(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return where the payload of a frame begins and where it ends; (0, 0) if its length is incomplete."""
    begin = at + 2
    if begin > end:
        return 0, 0
    length = view[at + 1] & ~_MASKED
    if length >= 126:
        wide = 2 if length == 126 else 8
        if begin + wide > end:
            return 0, 0
        length = int.from_bytes(view[begin : begin + wide], "big")
        begin += wide
    if view[at + 1] & _MASKED:
        begin += 4
    return begin, begin + length


def binary_frame(message: bytes) -> list[bytes]:
    """Return a message as one masked frame: buffers to write in order."""
    return _frame(BINARY_MESSAGE, message)


def message_frames(message: bytes, fragment_bytes: int = _FRAGMENT_BYTES) -> list[bytes]:
    """Return a message as masked frames of 1 MiB, or so many bytes: buffers to write in order.

    It is sent as text, unless it begins with a byte 0, as no JSON text does.
    """
    whole = BINARY_MESSAGE if message[:1] == b"\0" else TEXT_MESSAGE
    if len(message) <= fragment_bytes:
        return _frame(whole, message)
    pieces = [message[at : at + fragment_bytes] for at in range(0, len(message), fragment_bytes)]
    leads = [whole & ~_FINAL, *[_CONTINUED] * (len(pieces) - 2), _CONTINUED_FINAL]
    return [part for lead, piece in zip(leads, pieces, strict=True) for part in _frame(lead, piece)]


def short_frame(message: bytes) -> bytes:
    """Return a message of at most `SHORT_BYTES` as one masked frame, as `message_frames` makes it."""
    length, mask = len(message), _masks.pop() if _masks else _fresh_mask()
    lead = BINARY_MESSAGE if message[:1] == b"\0" else TEXT_MESSAGE
    if length < 126:
        return _SHORT_HEAD(lead, _MASKED | length, mask) + _masked(message, mask)
    return _MEDIUM_HEAD(lead, _MASKED | 126, length, mask) + _masked(message, mask)


def ping_frame() -> bytes:
    """Return a masked ping without payload."""
    return b"\x89\x80" + _fresh_mask()


def close_frame() -> bytes:
    """Return the masked Close frame of an orderly end."""
    return b"".join(_frame(_CLOSE, _NORMAL_CLOSURE.to_bytes(2, "big")))


def _fresh_mask() -> bytes:
    if not _masks:
        drawn = os.urandom(_MASKS_BYTES)
        _masks.extend(drawn[at : at + 4] for at in range(0, _MASKS_BYTES, 4))
    return _masks.pop()


def _frame(lead: int, payload: bytes) -> list[bytes]:
    length = len(payload)
    mask = _fresh_mask()
    if length < 126:
        head = _SHORT_HEAD(lead, _MASKED | length, mask)
    elif length < 65536:
        head = _MEDIUM_HEAD(lead, _MASKED | 126, length, mask)
    else:
        head = _LONG_HEAD(lead, _MASKED | 127, length, mask)
    masked = _masked(payload, mask)
    return [head, masked] if length > SHORT_BYTES else [head + masked]


def _masked(payload: bytes, mask: bytes) -> bytes:
    global _apply_mask, _masked_here
    if _apply_mask is None:
        length = len(payload)
        if length <= _LITTLE_BYTES and _masked_here < _FEW:
            _masked_here += 1
            key = int.from_bytes((mask * (length // 4 + 1))[:length], "big")
            return (int.from_bytes(payload, "big") ^ key).to_bytes(length, "big")
        from websockets.speedups import apply_mask

        _apply_mask = apply_mask
    return _apply_mask(payload, mask)
