"""HTTP requests made by the server's machine: whole responses, and bodies that come in pieces."""

from __future__ import annotations

from itertools import count
from typing import Self

from gevent.event import Event

from execserver.client.errors import ExecServerError
from execserver.client.greenlets.flow import Gate, Inlet
from execserver.client.greenlets.router import Stream
from execserver.client.greenlets.session import Session
from execserver.client.rules.body_log import (
    BodyLog,
    Headers,
    HttpFailed,
    HttpResponse,
    first_header,
    http_params,
)
from execserver.protocol.http import (
    HttpHeader,
    HttpRequestBodyDeltaNotification,
    HttpRequestResponse,
)
from execserver.protocol.methods import HTTP_REQUEST

__all__ = ["Headers", "HttpClient", "HttpFailed", "HttpResponse", "HttpStream"]


class HttpStream:
    """A response whose body is iterated as it comes.

    It belongs to one connection: if that is lost, iteration raises `TransportClosed` after what had arrived.
    The `flow_rules` module bounds what is not taken; a stream above the higher limit fails.
    """

    def __init__(self, gate: Gate, request_id: str) -> None:
        self.request_id = request_id
        self.status = 0
        self.headers: tuple[HttpHeader, ...] = ()
        self._gate = gate
        self._inlet = Inlet()
        self._log = BodyLog()
        self._arrived = Event()

    def header(self, name: str) -> str | None:
        """Return the first value of a header, whatever the case of its name."""
        return first_header(self.headers, name)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        """Return the next piece.  Raises `HttpFailed` for a cut body, `TransportClosed` after a loss."""
        self._inlet.read_by_caller()
        while (piece := self._log.take()) is None:
            self._arrived.clear()
            with self._gate.waiting():
                self._arrived.wait()
        if not piece:
            raise StopIteration
        self._update()
        return piece

    def read(self) -> bytes:
        """Return the rest of the body."""
        return b"".join(self)

    def close(self) -> None:
        """Take no more; what still comes is ignored, since the contract has no way to stop the server."""
        self._log.close()
        self._update()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def begin(self, answer: HttpRequestResponse) -> None:
        """Note the head of the response; pieces may have come before it."""
        self.status, self.headers = answer.status, answer.headers

    def deliver(self, delta: HttpRequestBodyDeltaNotification) -> bool:
        """Add one piece; return True if no more will come."""
        ended = self._log.add(delta, self._gate.hard_limit)
        self._update()
        return ended

    def fail(self, error: ExecServerError) -> None:
        """End the body with an error; what has arrived can still be taken."""
        self._log.fail(error)
        self._update()

    def _update(self) -> None:
        # A stream that has ended must not stop the connection: nothing more can come for it.
        self._gate.update(self._inlet, 0 if self._log.ended else self._log.held)
        self._arrived.set()


class HttpClient:
    """Makes requests; `streams` maps request ids to the streams that get the session's notifications."""

    def __init__(self, session: Session, gate: Gate, streams: dict[str, Stream]) -> None:
        self._session = session
        self._gate = gate
        self._streams = streams
        self._ids = count(1)

    def http_request(
        self,
        method: str,
        url: str,
        *,
        headers: Headers = (),
        body: bytes | None = None,
        timeout_ms: int | None = None,
    ) -> HttpResponse:
        """Make an HTTP request from the server's machine; any status is a success.

        Raises `InvalidParamsError` for an invalid request, `InternalError` if the other server cannot be
        reached.
        """
        params = http_params(self._next_id(), method, url, headers, body, timeout_ms, stream=False)
        return HttpResponse(self._session.call(HTTP_REQUEST, params))

    def http_stream(
        self,
        method: str,
        url: str,
        *,
        headers: Headers = (),
        body: bytes | None = None,
        timeout_ms: int | None = None,
    ) -> HttpStream:
        """Do the same, but return after the headers of the response; iterate the result for its body."""
        params = http_params(self._next_id(), method, url, headers, body, timeout_ms, stream=True)
        stream = HttpStream(self._gate, params.request_id)
        # Before the request: the first pieces may come before its answer.
        self._streams[params.request_id] = stream
        try:
            stream.begin(self._session.call(HTTP_REQUEST, params))
        except BaseException:
            self._streams.pop(params.request_id, None)
            raise
        return stream

    def _next_id(self) -> str:
        return f"http-{next(self._ids)}"
