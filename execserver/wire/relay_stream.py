"""The two ends of a virtual stream: `HarnessStream` opens it, `ExecutorStream` answers.

Both are driven as `virtual_stream` describes.  They differ in the handshake, in who offers reliability and
who accepts it, and in whether an error is reported to the peer.
"""

from __future__ import annotations

from typing import NamedTuple

from execserver.wire.acknowledged_records import RECEIVE_WINDOW, AcknowledgedRecords, from_peer
from execserver.wire.noise import Entropy, Initiator, RejectedByRegistry, Responder, prologue
from execserver.wire.noise_keys import PublicKeys, StaticKeys
from execserver.wire.noise_records import RecordReceiver, RecordSender, StreamError
from execserver.wire.noise_state import HandshakeFailed
from execserver.wire.relay_frames import Data, Handshake, RelayFrame, Resume
from execserver.wire.relay_offer import add_acceptance, add_offer, has_acceptance, has_offer
from execserver.wire.reliability import Reliability
from execserver.wire.virtual_stream import RelayStream, StreamReset

__all__ = [
    "ExecutorStream",
    "HarnessStream",
    "RelayStream",
    "Route",
    "StreamError",
    "StreamRejected",
    "StreamReset",
]


class StreamRejected(StreamError):
    """The executor says that the registry refuses this harness: another attempt would end alike."""


class Route(NamedTuple):
    """What a harness got from the registry: the executor's identity, and the authorization to connect."""

    environment_id: str
    registration_id: str
    executor: PublicKeys
    authorization: str


class HarnessStream(RelayStream):
    """The harness's end; begins with a `resume` and the handshake."""

    def __init__(
        self,
        stream_id: str,
        static: StaticKeys,
        route: Route,
        now: float,
        *,
        announce: bool = True,
        entropy: Entropy | None = None,
    ) -> None:
        """Begin the handshake.  Raises `StreamError` when the authorization is too long to be sent."""
        super().__init__(stream_id, announce=announce)
        self._offered = False
        about = prologue(route.environment_id, route.registration_id, stream_id)
        self._initiator: Initiator | None = Initiator(static, route.executor, about, entropy)
        # Customary rather than required: the reference's harness sends both frames, so both are sent here.
        self._control.append(Resume(0))
        try:
            self._control.append(Handshake(self._initiator.write_message1(route.authorization.encode())))
        except HandshakeFailed as error:
            self._fail(StreamError(str(error)), tell=False)

    @property
    def may_be_kept(self) -> bool:
        """True if the executor may wait for this stream to go on after its WebSocket is lost."""
        return self._offered

    def _take_handshake(self, body: Handshake, now: float) -> None:
        initiator = self._initiator
        if initiator is None:
            raise StreamError("a handshake on an open stream")
        self._initiator = None
        try:
            initiator.read_message2(body.payload)
        except RejectedByRegistry as rejected:
            raise StreamRejected(str(rejected)) from None
        self._sender = RecordSender(initiator.send)
        self._receiver = RecordReceiver(initiator.receive)
        if self._announce:
            self._acknowledgements = Reliability(self._receiver, now)

    def _announced(self, message: bytes) -> bytes:
        # The first message is `initialize`; nothing can be offered with any other one.
        offer = add_offer(message) if self._announce else None
        if offer is None:
            self._acknowledgements = None
            return message
        self._offered = True
        return offer

    def _look_at_first(self, message: bytes, now: float) -> None:
        # The executor answers `initialize` first, so it accepts here or never.
        if self._acknowledgements is not None and has_acceptance(message):
            self._become_reliable()
        else:
            self._acknowledgements = None
            self._offered = False

    def _tells_of_errors(self) -> bool:
        # The reference's harness only closes its WebSocket; a reliable executor would wait for another one.
        return self._reliable


class ExecutorStream(RelayStream):
    """The executor's end, opened once the registry has let the harness in; begins with the second message."""

    def __init__(
        self, stream_id: str, responder: Responder, *, announce: bool = True, numbered: bool = False
    ) -> None:
        """Take a responder that has read the first message; nothing is answered before `open`.

        With `numbered` a peer whose first record has the number 1 is answered as `acknowledged_records` says.
        """
        super().__init__(stream_id, announce=announce)
        self._may_be_numbered = numbered
        self._responder = responder

    def open(self) -> None:
        """Answer the first message.  Raises `HandshakeFailed`."""
        self._control.append(Handshake(self._responder.write_message2()))
        self._sender = RecordSender(self._responder.send)
        self._receiver = RecordReceiver(self._responder.receive)

    def feed(self, frame: RelayFrame, now: float) -> list[bytes]:
        """Take a frame of this stream; return the messages that are complete now.  Raises `StreamError`."""
        if self._may_be_numbered and isinstance(frame.body, Data):
            self._may_be_numbered = False  # the first record decides
            self._begin_numbered(frame.body, now)
        if not self._numbered or self.error is not None:
            return super().feed(frame, now)
        try:
            told = from_peer(frame)
        except StreamError as error:
            self._fail(error)
        return super().feed(told, now)

    def _begin_numbered(self, first: Data, now: float) -> None:
        receiver = self._receiver
        if first.seq == 1 and receiver is not None and receiver.opens_as_next(first.payload):
            self._reliable = self._numbered = True
            self._acknowledgements = AcknowledgedRecords(receiver, now)
            receiver.window = RECEIVE_WINDOW

    def _look_at_first(self, message: bytes, now: float) -> None:
        if self._numbered:
            return  # it acknowledges already
        if self._announce and self._receiver is not None and has_offer(message):
            self._acknowledgements = Reliability(self._receiver, now)

    def _announced(self, message: bytes) -> bytes:
        if self._numbered:
            return message
        # None for an error as well: an answer that is an error accepts nothing.
        accepted = add_acceptance(message) if self._acknowledgements is not None else None
        if accepted is None:
            self._acknowledgements = None
            return message
        self._become_reliable()
        return accepted
