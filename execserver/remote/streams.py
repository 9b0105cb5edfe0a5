"""All virtual streams of one executor: who is let in, what becomes of each frame (remote mode, section 6.3).

Handshakes are answered only after the registry said yes; it is asked beside, so that nobody waits for it.
Bounds: `MAX_ACTIVE` streams, `MAX_PENDING` questions to the registry, and after `FAILURES` failed handshakes
no further ones for `PAUSE_S`, while running streams go on.  A frame that makes no sense harms its own stream.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import gevent
from gevent.hub import get_hub

from execserver.remote.errors import one_line
from execserver.remote.fair_writer import FairWriter
from execserver.remote.prepared_keys import PreparedKeys
from execserver.remote.registry import Registration, Rejected
from execserver.remote.relay_transport import RelayTransport
from execserver.wire.noise import MAX_AUTHORIZATION_BYTES, HandshakeFailed, Responder, prologue
from execserver.wire.noise_keys import PublicKeys, StaticKeys
from execserver.wire.relay_frames import (
    RESET_PROTOCOL_ERROR,
    Data,
    Handshake,
    InvalidFrame,
    RelayFrame,
    Reset,
    Resume,
    decode_frame,
    encode_frame,
)
from execserver.wire.relay_stream import ExecutorStream

_log = logging.getLogger(__name__)

MAX_ACTIVE = 128
MAX_PENDING = 32
FAILURES = 8
PAUSE_S = 10.0
VALIDATION_S = 10.0
TOLD_AFTER_S = 0.005

Validate = Callable[[str, PublicKeys, str, str], None]
Serve = Callable[[RelayTransport], None]


class StreamTable:
    """The streams.  `registration` is replaced at each new registration, `writer` with each websocket.

    `validate` asks the registry and raises Rejected; `serve` starts a connection over a new stream.
    """

    def __init__(
        self,
        keys: StaticKeys,
        registration: Registration,
        validate: Validate,
        serve: Serve,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.registration = registration
        self.writer: FairWriter | None = None
        self._keys = keys
        self._prepared = PreparedKeys(clock)
        self._arrivals = _Arrivals()
        self._validate = validate
        self._serve = serve
        self._clock = clock
        self._active: dict[str, RelayTransport] = {}
        self._pending: dict[str, gevent.Greenlet[..., None]] = {}
        self._failures = 0
        self._refusing_until = 0.0
        self._silent_until = 0.0

    @property
    def count(self) -> int:
        """How many streams there are, those included that wait for a websocket."""
        return len(self._active)

    def attach(self, writer: FairWriter) -> None:
        """Use a new websocket; streams that outlived the last one go on over it."""
        self.writer = writer
        self._failures = 0
        self._refusing_until = 0.0
        self._prepared.prepare()
        for transport in list(self._active.values()):
            transport.new_websocket()

    def detach(self) -> None:
        """The websocket is gone: handshakes are forgotten, plain streams end."""
        self.writer = None
        self._prepared.clear()
        self._cancel_all()
        for transport in list(self._active.values()):
            transport.lost_websocket()

    def close(self) -> None:
        """End all streams in good order."""
        self._cancel_all()
        for transport in list(self._active.values()):
            transport.close(0, "the executor is shutting down")

    def take(self, data: bytes) -> bool:
        """Do what one message of the websocket asks for; False if it was no valid frame, which is dropped."""
        try:
            frame = decode_frame(data)
        except InvalidFrame as error:
            _log.debug("a frame was dropped: %s", error)
            return False
        if isinstance(frame.body, Handshake):
            self._take_handshake(frame.stream_id, frame.body.payload)
        elif (transport := self._active.get(frame.stream_id)) is not None:
            transport.receive(frame)
        elif isinstance(frame.body, Reset):
            self._cancel(frame.stream_id)
        elif isinstance(frame.body, Data):
            self._take_early_data(frame.stream_id)
        elif isinstance(frame.body, Resume) and frame.body.next_seq:
            self._reset(frame.stream_id)  # a reliable stream that has ended here meanwhile
        return True

    def ended(self, transport: RelayTransport, *, reset: bool) -> None:
        """Forget a stream, whose id may be used again."""
        if self._active.pop(transport.stream_id, None) is None:
            return
        if reset:
            self._reset(transport.stream_id)
        self._arrivals.tell()
        reason = one_line(transport.reason)
        _log.info("a harness left (%s): %s; %d connected", one_line(transport.stream_id), reason, self.count)

    def _take_early_data(self, stream_id: str) -> None:
        if self._cancel(stream_id):
            self._fail(stream_id, "it sent data before it was let in")
        else:
            self._reset(stream_id)

    def _take_handshake(self, stream_id: str, message: bytes) -> None:
        if stream_id in self._active:
            self._reset(stream_id)
        elif self._cancel(stream_id):
            self._fail(stream_id, "it began twice")
        elif self._clock() < self._refusing_until:
            self._reset(stream_id)
        elif self.count >= MAX_ACTIVE or len(self._pending) >= MAX_PENDING:
            self._tell_of_crowd()
            self._reset(stream_id)
        else:
            self._begin(stream_id, message)

    def _tell_of_crowd(self) -> None:
        """Log that there is no place, not more often than every few seconds."""
        if self._clock() >= self._silent_until:
            self._silent_until = self._clock() + PAUSE_S
            _log.warning(
                "a harness was refused: %d are connected, %d asked about", self.count, len(self._pending)
            )

    def _begin(self, stream_id: str, message: bytes) -> None:
        """Read the first message and ask the registry about its sender."""
        known = self.registration
        about = prologue(known.environment_id, known.registration_id, stream_id)
        responder = Responder(self._keys, about, self._prepared)
        try:
            harness, payload = responder.read_message1(message)
        except HandshakeFailed as error:
            self._fail(stream_id, f"its handshake failed: {error}")
            return
        try:
            authorization = payload.decode() if len(payload) <= MAX_AUTHORIZATION_BYTES else None
        except UnicodeDecodeError:
            authorization = None
        if authorization is None:
            self._fail(stream_id, "its authorization is not usable")
            return
        question = gevent.Greenlet(self._ask, stream_id, responder, harness, authorization)
        self._pending[stream_id] = question
        question.start()

    def _ask(self, stream_id: str, responder: Responder, harness: PublicKeys, authorization: str) -> None:
        answer = _Answer(stream_id, responder)
        get_hub().loop.run_callback(answer.make)  # while the registry is asked
        reason = ""
        try:
            with gevent.Timeout(VALIDATION_S, Rejected("the registry did not answer in time")):
                self._validate(self.registration.registration_id, harness, authorization, stream_id)
        except Rejected as rejected:
            reason = str(rejected)
        # Not kept in a name: this frame may outlive the greenlet, by the traceback of what has killed that.
        if self._pending.get(stream_id) is not gevent.getcurrent():
            return
        del self._pending[stream_id]
        if reason:
            self._fail(stream_id, reason)
        else:
            self._let_in(stream_id, answer)

    def _let_in(self, stream_id: str, answer: _Answer) -> None:
        if self.count >= MAX_ACTIVE:
            self._reset(stream_id)
            return
        answer.make()
        if answer.stream is None:
            self._fail(stream_id, f"its handshake failed: {answer.failure}")
            return
        transport = RelayTransport(answer.stream, self, self._clock)
        self._active[stream_id] = transport
        self._serve(transport)
        transport.flush()
        self._arrivals.tell_soon(stream_id, self.count)

    def _fail(self, stream_id: str, reason: str) -> None:
        """Refuse a handshake and count the failure."""
        _log.warning("a harness was refused: %s", one_line(reason))
        self._reset(stream_id)
        self._failures += 1
        if self._failures >= FAILURES:
            self._failures = 0
            self._refusing_until = self._clock() + PAUSE_S
            _log.warning("%d handshakes failed: no new harness is let in for %g s", FAILURES, PAUSE_S)

    def _reset(self, stream_id: str) -> None:
        """Tell the peer that a stream is over, if there is room for such frames."""
        if self.writer is not None:
            self.writer.urgent(encode_frame(RelayFrame(stream_id, Reset(RESET_PROTOCOL_ERROR))))

    def _cancel(self, stream_id: str) -> bool:
        question = self._pending.pop(stream_id, None)
        if question is None:
            return False
        question.kill(block=False)
        return True

    def _cancel_all(self) -> None:
        for stream_id in list(self._pending):
            self._cancel(stream_id)


class _Arrivals:
    """Tells of harnesses that came, a moment later: they need not wait for the line to be written."""

    def __init__(self) -> None:
        self._untold: dict[str, int] = {}
        self._timer = get_hub().loop.timer(TOLD_AFTER_S, TOLD_AFTER_S)

    def tell_soon(self, stream_id: str, count: int) -> None:
        """Note a harness, and how many there are with it."""
        self._untold[stream_id] = count
        self._timer.again(self.tell)

    def tell(self) -> None:
        """Tell of all that were not told of."""
        self._timer.stop()
        untold, self._untold = self._untold, {}
        for stream_id, count in untold.items():
            _log.info("a harness connected (%s); %d connected", one_line(stream_id), count)


class _Answer:
    """The second message of a handshake, in its stream, or why there is none."""

    __slots__ = ("_responder", "_stream_id", "failure", "stream")

    def __init__(self, stream_id: str, responder: Responder) -> None:
        self.stream: ExecutorStream | None = None
        self.failure = ""
        self._stream_id = stream_id
        self._responder: Responder | None = responder

    def make(self) -> None:
        """Make it, the first time this is called.  Waits for nothing."""
        responder, self._responder = self._responder, None
        if responder is None:
            return
        try:
            self.stream = ExecutorStream(self._stream_id, responder)
        except HandshakeFailed as error:
            self.failure = str(error)
