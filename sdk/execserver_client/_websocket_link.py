"""The client's end of an upgraded WebSocket, on asyncio: whole messages in both directions.

`wire.client_frames` parses and makes frames, and the `websockets` library decides what is wrong with one.
Everything happens in callbacks of the event loop: `Owner` is told of messages, of room and of the end.

Bounds: the limits of the kind for a frame and a message; 64 KiB of frames that the socket does not take, then
`can_write` is False until it has taken most of them; a ping every 30 s, and the end without a pong in 60 s.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from execserver.wire.client_frames import (
    BINARY_MESSAGE,
    TEXT_MESSAGE,
    ClientFrames,
    close_frame,
    ping_frame,
)

if TYPE_CHECKING:
    from execserver.wire.client_end import ClientEnd

PING_INTERVAL_S: Final = 30.0
PONG_TIMEOUT_S: Final = 60.0
_HIGH_WATER: Final = 64 * 1024
_LOW_WATER: Final = 16 * 1024
_ODD_BYTES: Final = 8 * 1024  # read at once while frames other than whole messages come: these cost most
_GOODBYE_S: Final = 1.0


class Kind(NamedTuple):
    """The limits for received messages and frames, and whether text is taken; `peer` names the other end."""

    max_message_bytes: int
    max_frame_bytes: int
    is_text: bool
    peer: str


class Owner(Protocol):
    """What a link calls; nothing of it may wait or raise."""

    def on_message(self, message: bytes) -> None:
        """Take a message."""

    def on_read(self) -> None:
        """Note that all messages of one read were taken: answers may be written together."""

    def on_room(self) -> None:
        """Note that frames can be written again."""

    def on_end(self, reason: str) -> None:
        """Note that the connection is over; not called for `close`."""


class WebSocketLink(asyncio.BufferedProtocol):
    """One connection after the upgrade; owns its transport, which `close` and `abort` close."""

    def __init__(self, kind: Kind, owner: Owner) -> None:
        """Make the protocol of a transport, to which `attach` binds it."""
        self.can_write = True
        self.broke_rules = False
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._kind = kind
        self._owner: Owner | None = owner  # None after the end, which is told once
        self._transport: asyncio.Transport | None = None
        self._messages: deque[bytes] = deque()
        lead = TEXT_MESSAGE if kind.is_text else BINARY_MESSAGE
        most = min(kind.max_message_bytes, kind.max_frame_bytes)
        self._frames = ClientFrames(lead, most, self._messages.append, self._feed_library)
        self._library: ClientEnd | None = None  # from the first frame on that is not a whole message
        self._is_odd = False
        self._answer = b""  # the newest pong, until it is written
        self._timer: asyncio.TimerHandle | None = None

    def attach(self, transport: asyncio.Transport) -> None:
        """Take over the transport whose protocol this is."""
        self._transport = transport
        transport.set_write_buffer_limits(_HIGH_WATER, _LOW_WATER)
        self._wait_for_ping()

    def take(self, early: bytes) -> None:
        """Take what came behind the answer to the upgrade."""
        self._frames.take(early)
        self._send_answer()
        self._hand_out()

    def write(self, buffers: list[bytes]) -> None:
        """Write the buffers of whole frames; nothing once the connection is over."""
        if self._owner is not None and self._transport is not None:
            # Not writelines: that of early releases of Python 3.12 and 3.13 never tells of a full buffer.
            self._transport.write(buffers[0] if len(buffers) == 1 else b"".join(buffers))

    def pause_reading(self) -> None:
        """Read nothing more until `resume_reading`; a peer that is not heard meanwhile is not missed."""
        if self._owner is not None and self._transport is not None:
            self._transport.pause_reading()
            self._stop_timer()

    def resume_reading(self) -> None:
        """Read again."""
        if self._owner is not None and self._transport is not None:
            self._stop_timer()
            Context().run(self._resume, self._transport)

    def close(self) -> None:
        """Send a Close frame, and end once the peer has taken what was written, or after a second.

        `gone` is done then.  May be called again.
        """
        transport = self._transport
        if self._owner is None or transport is None:
            return
        transport.write(close_frame())
        self._end()
        transport.close()
        self._timer = asyncio.get_running_loop().call_later(_GOODBYE_S, transport.abort)

    def abort(self) -> None:
        """End without a word.  May be called again, also after `close`."""
        self._end()
        if self._transport is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        space = self._frames.space
        if not space:
            return memoryview(bytearray(_ODD_BYTES))  # after the end: what still comes is dropped
        return space[:_ODD_BYTES] if self._is_odd else space

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that were read."""
        if self._owner is None:
            return
        self._is_odd = False
        self._frames.arrived(nbytes)
        self._send_answer()
        self._hand_out()

    def eof_received(self) -> bool:
        """Note that the peer sends nothing more."""
        self._fail(f"{self._kind.peer} closed the connection")
        return False

    def pause_writing(self) -> None:
        """Note that the peer does not take what was written."""
        self.can_write = False

    def resume_writing(self) -> None:
        """Note that it does again."""
        self.can_write = True
        self._send_answer()
        if self._owner is not None:
            self._owner.on_room()

    def connection_lost(self, error: Exception | None) -> None:
        """Note that there is no socket any more."""
        self._fail(f"the connection broke: {error}" if error else f"{self._kind.peer} closed the connection")
        self._stop_timer()
        self._transport = None
        if not self.gone.done():
            self.gone.set_result(None)

    def _hand_out(self) -> None:
        """Give the owner what arrived; not from within `arrived`, which the owner may end."""
        while self._messages and self._owner is not None:
            self._owner.on_message(self._messages.popleft())
        if self._owner is not None:
            self._owner.on_read()
        self._end_if_over()

    def _feed_library(self, data: bytes) -> bool:
        """Give a frame other than a whole message to the library; return whether more is read."""
        if self._library is None:
            # Late: most connections end without such a frame, and the library is a fifth of all imports.
            from execserver.wire.client_end import BINARY_ONLY, TEXT_TOO, ClientEnd

            takes = TEXT_TOO if self._kind.is_text else BINARY_ONLY
            limits = self._kind.max_message_bytes, self._kind.max_frame_bytes
            self._library = ClientEnd.upgraded(*limits, takes, self._messages.append, self._on_pong)
        library = self._library
        for answer in library.feed(data):
            self._answer = answer  # RFC 6455 lets an end answer only the newest of several pings
        self._is_odd = self._is_odd or library.saw_frames
        return library.is_open and library.broken_rule is None

    def _send_answer(self) -> None:
        """Send the newest pong, or the echo of a Close, once the socket takes something."""
        if self._answer and self.can_write:
            answer, self._answer = self._answer, b""
            self.write([answer])

    def _end_if_over(self) -> None:
        library = self._library
        if library is None or self._owner is None:
            return
        if library.broken_rule is not None:
            self.broke_rules = True
            self._fail(f"{self._kind.peer} broke the rules of WebSocket: {library.broken_rule}")
        elif not library.is_open:
            code = library.close_code
            self._fail(f"{self._kind.peer} closed the connection" + (f" ({code})" if code else ""))

    def _resume(self, transport: asyncio.Transport) -> None:
        """Listen and wait for the next ping; what the event loop notes holds the context, and so its task."""
        transport.resume_reading()
        self._wait_for_ping()

    def _wait_for_ping(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PING_INTERVAL_S, self._ping)

    def _ping(self) -> None:
        self.write([ping_frame()])
        silent = f"no pong within {PONG_TIMEOUT_S:g} s"
        self._timer = asyncio.get_running_loop().call_later(PONG_TIMEOUT_S, self._fail, silent)

    def _on_pong(self) -> None:
        if self._timer is not None:
            self._stop_timer()
            self._wait_for_ping()

    def _fail(self, reason: str) -> None:
        """End because of the peer."""
        owner, transport = self._owner, self._transport
        if owner is None:
            return
        self._end()
        if transport is not None:
            transport.abort()
        owner.on_end(reason)

    def _end(self) -> None:
        self._owner = None
        self.can_write = False
        self._messages.clear()
        self._stop_timer()
        self._frames.let_go()
        if self._library is not None:
            self._library.let_go()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
