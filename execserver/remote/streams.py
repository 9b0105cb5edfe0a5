"""All virtual streams of one executor: which harness is let in, and what each frame does (remote mode).

A handshake is answered only after the registry has let its harness in.  No stream waits for the registry
meanwhile.  Bounds: `MAX_ACTIVE` streams, `MAX_PENDING` requests to the
registry, and after `FAILURES` failed handshakes no further ones for `PAUSE_S`, while running streams go on.
An invalid frame harms its own stream only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

from gevent.hub import get_hub

from execserver.remote.admission import Admission, Serve
from execserver.remote.errors import one_line
from execserver.remote.fair_writer import FairWriter
from execserver.remote.registry import AuthenticationRejected, Rejected
from execserver.remote.registry_answers import Registration
from execserver.remote.relay_transport import RelayTransport
from execserver.remote.verdict import Question, Verdict
from execserver.wire.noise import MAX_AUTHORIZATION_BYTES, EntropyAhead, HandshakeFailed, Responder, prologue
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

# The reference's limits.  The pause is that of 0.169.0; 0.142.0 closes the WebSocket at the 8th failure, by
# which a harness that only guesses could end all streams.
MAX_ACTIVE = 128
MAX_PENDING = 32
FAILURES = 8
PAUSE_S = 10.0
VALIDATION_S = 10.0
TOLD_AFTER_S = 0.005  # the log line of an arrival waits so long, and the first answers need not wait for it

Ask = Callable[[str, PublicKeys, str, str], Question]


class StreamTable:
    """The streams.  `registration` is replaced at each new registration, `writer` with each WebSocket.

    `ask` begins to ask the registry about a harness, and does not wait.
    """

    def __init__(
        self,
        keys: StaticKeys,
        registration: Registration,
        ask: Ask,
        serve: Serve,
        clock: Callable[[], float] = time.monotonic,
        *,
        numbered: bool = False,
    ) -> None:
        """With `numbered` harnesses may number their records from 1 and acknowledge ours."""
        self.registration = registration
        self.writer: FairWriter | None = None
        self._keys = keys
        self._entropy = EntropyAhead()
        self._arrivals = _Arrivals(self._entropy.make_ahead)
        self._ask = ask
        self._serve = serve
        self._clock = clock
        self._numbered = numbered
        self._active: dict[str, RelayTransport] = {}
        self._pending: dict[str, tuple[Admission, Verdict]] = {}  # handshakes the registry decides about
        self._failures = 0
        self._refusing_until = 0.0
        self._silent_until = 0.0  # no log line about a full table before

    @property
    def count(self) -> int:
        """The number of streams, those without a WebSocket included."""
        return len(self._active)

    @property
    def ids(self) -> list[str]:
        """The ids of all streams, and of those that the registry is asked about."""
        return [*self._active, *self._pending]

    def end_former(self, stream_ids: Iterable[str]) -> None:
        """Tell harnesses that the streams are over which they had with the program before this one."""
        for stream_id in stream_ids:
            self._reset(stream_id)

    def attach(self, writer: FairWriter) -> None:
        """Use a new WebSocket; streams that survived the last one go on over it."""
        self.writer = writer
        # Counted for each WebSocket, as by the reference.
        self._failures = 0
        self._refusing_until = 0.0
        for transport in list(self._active.values()):
            transport.new_websocket()

    def detach(self) -> None:
        """Note that the WebSocket is gone: handshakes are dropped, plain streams end."""
        # Before the streams learn of it: what ends now has nothing left to send a reset on.
        self.writer = None
        self._cancel_all()
        for transport in list(self._active.values()):
            transport.lost_websocket()

    def close(self) -> None:
        """End all streams once what they have queued is written."""
        self._cancel_all()
        for transport in list(self._active.values()):
            transport.close(0, "the executor is shutting down")

    def take(self, data: bytes) -> bool:
        """Handle one message of the WebSocket; return False for an invalid frame, which is dropped."""
        try:
            frame = decode_frame(data)
        except InvalidFrame as error:
            _log.debug("a frame was dropped: %s", error)
            return False
        # Before the look-up: a handshake with the id of a running stream is refused, and the stream goes on.
        if isinstance(frame.body, Handshake):
            self._take_handshake(frame.stream_id, frame.body.payload)
        elif (transport := self._active.get(frame.stream_id)) is not None:
            transport.receive(frame)
        elif isinstance(frame.body, Reset):
            self._cancel(frame.stream_id)
        elif isinstance(frame.body, Data):
            self._take_early_data(frame.stream_id)
        elif isinstance(frame.body, Resume) and frame.body.next_seq:
            # A reliable stream that has ended here: its harness goes on to a new stream at once.  A `resume`
            # of 0 is what a harness sends before each handshake.
            self._reset(frame.stream_id)
        return True

    def ended(self, transport: RelayTransport, *, reset: bool) -> None:
        """Remove a stream, whose id may be used again; with `reset` report its end to the peer."""
        if self._active.get(transport.stream_id) is not transport:
            return  # it was never let in
        del self._active[transport.stream_id]
        if reset:
            self._reset(transport.stream_id)
        self._arrivals.tell()  # first, so that the log has its arrival before its end
        reason = one_line(transport.reason)
        _log.info("a harness left (%s): %s; %d connected", one_line(transport.stream_id), reason, self.count)

    def _take_early_data(self, stream_id: str) -> None:
        # A harness must wait for the answer.  Data for an unknown stream may be late and is no failure.
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
        # A full table is not the harness's fault, and no failure.
        elif self.count >= MAX_ACTIVE or len(self._pending) >= MAX_PENDING:
            self._tell_of_crowd()
            self._reset(stream_id)
        else:
            self._begin(stream_id, message)

    def _tell_of_crowd(self) -> None:
        """Log that there is no place, at most once in `PAUSE_S`."""
        if self._clock() >= self._silent_until:
            self._silent_until = self._clock() + PAUSE_S
            _log.warning(
                "a harness was refused: %d are connected, %d asked about", self.count, len(self._pending)
            )

    def _begin(self, stream_id: str, message: bytes) -> None:
        """Read the first message and ask the registry about its sender."""
        # The ids of the registry's own reply: both ends must hash the same ones.
        known = self.registration
        about = prologue(known.environment_id, known.registration_id, stream_id)
        responder = Responder(self._keys, about, self._entropy)
        try:
            harness, payload = responder.read_message1(message)
        except HandshakeFailed as error:
            self._fail(stream_id, f"its handshake failed: {error}")
            return
        # What cannot be valid is not sent to the registry.
        try:
            authorization = payload.decode() if len(payload) <= MAX_AUTHORIZATION_BYTES else None
        except UnicodeDecodeError:
            authorization = None
        if authorization is None:
            self._fail(stream_id, "its authorization is not usable")
            return
        # First of all: the registry thinks while everything else is done.
        question = self._ask(known.registration_id, harness, authorization, stream_id)
        admission = Admission(responder, question, partial(self._transport, stream_id), self._serve)
        verdict = Verdict(question, partial(self._decided, stream_id, admission), VALIDATION_S)
        self._pending[stream_id] = admission, verdict
        # Made ready meanwhile, since that takes CPU; opened only after the registry's yes.
        get_hub().loop.run_callback(admission.prepare)

    def _decided(self, stream_id: str, admission: Admission, rejected: Rejected | None) -> None:
        del self._pending[stream_id]
        try:
            self._decide(stream_id, admission, rejected)
        finally:
            admission.close()

    def _decide(self, stream_id: str, admission: Admission, rejected: Rejected | None) -> None:
        if isinstance(rejected, AuthenticationRejected):
            self._fail(stream_id, str(rejected), admission.rejection())
        elif rejected is not None:
            self._fail(stream_id, str(rejected))
        # Checked again: up to `MAX_PENDING` others may have been let in while the registry was asked.
        elif self.count >= MAX_ACTIVE:
            self._reset(stream_id)
        elif (transport := admission.open()) is None:
            self._fail(stream_id, f"its handshake failed: {admission.failure}")
        else:
            self._active[stream_id] = transport
            transport.flush_at_once()  # the harness has its answer without a switch to the writer
            self._arrivals.tell_soon(stream_id, self.count)

    def _transport(self, stream_id: str, responder: Responder) -> RelayTransport:
        stream = ExecutorStream(stream_id, responder, numbered=self._numbered)
        return RelayTransport(stream, self, self._clock)

    def _fail(self, stream_id: str, reason: str, rejection: Handshake | None = None) -> None:
        """Refuse a handshake, by a reset or with a `rejection`, and count the failure."""
        _log.warning("a harness was refused: %s", one_line(reason))
        if rejection is None:
            self._reset(stream_id)
        else:
            self._urgent(stream_id, rejection)
        self._failures += 1
        if self._failures >= FAILURES:
            self._failures = 0
            self._refusing_until = self._clock() + PAUSE_S
            _log.warning("%d handshakes failed: no new harness is let in for %g s", FAILURES, PAUSE_S)

    def _reset(self, stream_id: str) -> None:
        self._urgent(stream_id, Reset(RESET_PROTOCOL_ERROR))

    def _urgent(self, stream_id: str, body: Reset | Handshake) -> None:
        """Send a frame that belongs to no running stream; it is dropped if too many such frames wait."""
        if self.writer is not None:
            self.writer.urgent(encode_frame(RelayFrame(stream_id, body)))

    def _cancel(self, stream_id: str) -> bool:
        pending = self._pending.pop(stream_id, None)
        if pending is None:
            return False
        admission, verdict = pending
        verdict.cancel()
        admission.close()
        return True

    def _cancel_all(self) -> None:
        for stream_id in list(self._pending):
            self._cancel(stream_id)


class _Arrivals:
    """Logs arrivals of harnesses a moment later, so that their first answers do not wait for the log.

    `rest` is called then, too: what else can wait so long.
    """

    def __init__(self, rest: Callable[[], None]) -> None:
        self._rest = rest
        self._untold: dict[str, int] = {}
        self._timer = get_hub().loop.timer(TOLD_AFTER_S, TOLD_AFTER_S)

    def tell_soon(self, stream_id: str, count: int) -> None:
        """Note a harness that has arrived, and how many there are with it."""
        self._untold[stream_id] = count
        self._timer.again(self.tell)

    def tell(self) -> None:
        """Log all arrivals that were not logged yet."""
        self._timer.stop()
        untold, self._untold = self._untold, {}
        for stream_id, count in untold.items():
            _log.info("a harness connected (%s); %d connected", one_line(stream_id), count)
        self._rest()
