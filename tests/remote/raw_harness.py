"""A harness of the plain protocol over a real websocket, message by message."""

from __future__ import annotations

from uuid import uuid4

from execserver.remote.rendezvous import RendezvousSocket
from execserver.wire.noise import Initiator, prologue
from execserver.wire.noise_keys import PublicKeys, StaticKeys
from execserver.wire.noise_records import RecordReceiver, RecordSender
from execserver.wire.relay_frames import (
    Data,
    Handshake,
    RelayFrame,
    Reset,
    Resume,
    decode_frame,
    encode_frame,
)
from tests.support.relay import Relay


class NotLetIn(Exception):
    """The executor answered the handshake with something else."""


class RawHarness:
    """One connection; `acks` collects acknowledgements that are not 0, which a plain peer never gets."""

    def __init__(self, relay: Relay) -> None:
        self.stream_id = str(uuid4())
        self.acks: set[tuple[int, int]] = set()
        registration = f"reg-{relay.registrations}"
        executor = PublicKeys.from_json(relay.executor_key)
        about = prologue("env-1", registration, self.stream_id)
        initiator = Initiator(StaticKeys.generate(), executor, about)
        self._socket = RendezvousSocket.connect(f"ws://127.0.0.1:{relay.port}/harness", {})
        self._frame(RelayFrame(self.stream_id, Resume(0)))
        self._frame(RelayFrame(self.stream_id, Handshake(initiator.write_message1(b"let-me-in"))))
        answer = self._receive().body
        if not isinstance(answer, Handshake):
            self._socket.close()
            raise NotLetIn(answer)
        initiator.read_message2(answer.payload)
        self._sender, self._receiver = RecordSender(initiator.send), RecordReceiver(initiator.receive)
        self._messages: list[bytes] = []

    def send(self, message: bytes) -> None:
        """Send one message."""
        for record in self._sender.seal(message):
            self._frame(RelayFrame(self.stream_id, Data(*record)))

    def next(self) -> str:
        """Return the next message, or the reason of a reset."""
        while not self._messages:
            body = self._receive().body
            if isinstance(body, Reset):
                return body.reason
            assert isinstance(body, Data), body
            self._messages = self._receiver.feed(body.seq, body.payload)
        return self._messages.pop(0).decode()

    def close(self) -> None:
        """Leave."""
        self._socket.close()

    def _frame(self, frame: RelayFrame) -> None:
        self._socket.send(encode_frame(frame))

    def _receive(self) -> RelayFrame:
        data = self._socket.receive()
        assert data is not None, self._socket.ended_because
        frame = decode_frame(data)
        if frame.ack or frame.ack_bits:
            self.acks.add((frame.ack, frame.ack_bits))
        return frame
