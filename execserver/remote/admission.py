"""The admission of one harness: its stream, made ready while the registry is asked, and opened after its yes.

Everything is ready then but the answer itself.  Before `open` nothing of the stream is written, and no frame
gets to it.
"""

from __future__ import annotations

from collections.abc import Callable

from execserver.remote.relay_transport import RelayTransport
from execserver.remote.verdict import Question
from execserver.wire.noise import REJECTED, HandshakeFailed, Responder
from execserver.wire.relay_frames import Handshake

Serve = Callable[[RelayTransport], Callable[[], None]]
"""Makes a connection over a stream, with no effect yet; returns what to call once the stream begins."""


class Admission:
    """One handshake.  `close` is called whatever becomes of it."""

    __slots__ = ("_begin", "_make", "_question", "_responder", "_serve", "_transport", "failure")

    def __init__(
        self,
        responder: Responder,
        question: Question,
        make: Callable[[Responder], RelayTransport],
        serve: Serve,
    ) -> None:
        """Take a responder that has read its message; `make` makes the transport of its stream."""
        self.failure = ""  # why it cannot be answered
        self._question = question
        self._responder = responder
        self._make = make
        self._serve = serve
        self._transport: RelayTransport | None = None
        self._begin: Callable[[], None] | None = None

    def prepare(self) -> None:
        """Do what takes long.  Does not wait; a second call does nothing."""
        if self._transport is not None or self.failure:
            return
        try:
            self._responder.prepare_message2()
        except HandshakeFailed as error:
            self.failure = str(error)
            return
        self._transport = self._make(self._responder)
        self._begin = self._serve(self._transport)

    def open(self) -> RelayTransport | None:
        """Let the harness in: return its transport, with the answer queued; None if the handshake failed."""
        self.prepare()
        transport, begin = self._transport, self._begin
        if transport is None or begin is None:
            return None
        self._transport = self._begin = None
        self.failure = "it was answered"
        begin()
        transport.start()
        return transport

    def rejection(self) -> Handshake | None:
        """Return the frame that says that the registry refuses the harness; None if the handshake failed."""
        self.prepare()
        return None if self.failure else Handshake(self._responder.write_message2(REJECTED))

    def close(self) -> None:
        """End what was made ready, unless the harness was let in."""
        self._question.close()
        transport, self._transport = self._transport, None
        self._begin = None
        if not self.failure:
            self.failure = "it was given up"
        if transport is not None:
            self._responder.clear()
            transport.abandon()
