"""The client's end of a WebSocket without its socket, on the `websockets` library.

The Python client and remote mode use it.  Bytes from the peer go in, whole messages come out; fragments are
joined as they come, so that their number costs no memory.  What has to be sent in answer (pongs, the echo of
a Close frame) is returned.  The library decides what is wrong with a frame, and applies the limits of its
protocol object to frames and messages.  No I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, OPEN, Protocol

from execserver.wire.ended_protocol import let_go

BINARY_ONLY: Final = frozenset((Opcode.BINARY,))
TEXT_TOO: Final = frozenset((Opcode.BINARY, Opcode.TEXT))
_NORMAL_CLOSURE: Final = 1000


class ClientEnd:
    """One connection; `message` gets each whole message of a kind in `takes`, other kinds are dropped.

    `pong` is called for each pong.  `saw_frames` is True if the library found frames in the last bytes: such
    reads cost most, and a flood of them may complete no message.
    """

    __slots__ = ("_message", "_partial", "_pong", "_protocol", "_takes", "saw_frames")

    def __init__(
        self,
        protocol: Protocol,
        takes: frozenset[Opcode],
        message: Callable[[bytes], object],
        pong: Callable[[], object] = lambda: None,
    ) -> None:
        self._protocol = protocol
        self._takes = takes
        self._message = message
        self._pong = pong
        self._partial: bytearray | None = None
        self.saw_frames = False

    @classmethod
    def upgraded(
        cls,
        max_message_bytes: int,
        max_frame_bytes: int,
        takes: frozenset[Opcode],
        message: Callable[[bytes], object],
        pong: Callable[[], object] = lambda: None,
    ) -> ClientEnd:
        """Return the end of a connection whose upgrade is over."""
        protocol = Protocol(CLIENT, state=OPEN, max_size=(max_message_bytes, max_frame_bytes))
        return cls(protocol, takes, message, pong)

    @property
    def is_open(self) -> bool:
        """True until either side has begun to close, or the peer broke the rules."""
        return self._protocol.state is OPEN

    @property
    def broken_rule(self) -> Exception | None:
        """The protocol error of the peer, or None; an end of the connection within a frame is none."""
        broken = self._protocol.parser_exc
        return None if isinstance(broken, EOFError) else broken

    @property
    def close_code(self) -> int | None:
        """The code of the received Close frame, or None."""
        close = self._protocol.close_rcvd
        return None if close is None else close.code

    def feed(self, data: bytes) -> list[bytes]:
        """Take received bytes; return what to send."""
        self._protocol.receive_data(data)
        return self.collect()

    def collect(self) -> list[bytes]:
        """Take what the library has parsed so far, such as frames that came with the answer to the upgrade.

        Returns what to send.
        """
        events = self._protocol.events_received()
        self.saw_frames = bool(events)
        for event in events:
            if isinstance(event, Frame):
                self._take(event)
        return [data for data in self._protocol.data_to_send() if data]

    def goodbye(self) -> bytes:
        """Return the Close frame of an orderly end.  Raises WebSocketException if it is too late for one."""
        self._protocol.send_close(_NORMAL_CLOSURE)
        return b"".join(self._protocol.data_to_send())

    def let_go(self) -> None:
        """Free the library's reference cycles; nothing can be fed after this."""
        self._partial = None
        let_go(self._protocol)

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.PONG:
            self._pong()
        elif frame.opcode is Opcode.TEXT or frame.opcode is Opcode.BINARY:
            self._partial = None
            if frame.opcode not in self._takes:
                return
            if frame.fin:
                self._message(bytes(frame.data))
            else:
                self._partial = bytearray(frame.data)
        elif frame.opcode is Opcode.CONT and self._partial is not None:
            self._partial += frame.data
            if frame.fin:
                self._message(bytes(self._partial))
                self._partial = None
