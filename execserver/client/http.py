"""HTTP requests made by the server's machine: whole responses, and bodies that come in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Final, Self, TypeAlias

import gevent
from gevent.event import Event

from execserver.client.errors import ExecServerError, TransportClosed
from execserver.client.flow import Gate, Inlet
from execserver.client.session import Session
from execserver.protocol.http import (
    HttpHeader,
    HttpRequestBodyDeltaNotification,
    HttpRequestParams,
    HttpRequestResponse,
)
from execserver.protocol.methods import HTTP_REQUEST

_PIECE_OVERHEAD: Final = 200  # bytes that a piece costs besides its content

Headers: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]


class HttpFailed(ExecServerError):
    """The body of an HTTP response ended early."""


class HttpResponse:
    """A response with its whole body: `status`, `headers` in order with repeats, `body`."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, answer: HttpRequestResponse) -> None:
        self.status = answer.status
        self.headers: tuple[HttpHeader, ...] = answer.headers
        self.body = answer.body_base64

    def header(self, name: str) -> str | None:
        """Return the first value of a header, whatever the case of its name."""
        return _header(self.headers, name)


class HttpStream:
    """A response whose body is iterated as it comes.

    It belongs to one connection: if that is lost, iteration raises `TransportClosed` after what had arrived.
    The `flow` module bounds what is not taken; a stream above the higher limit fails.
    """

    def __init__(self, gate: Gate, request_id: str) -> None:
        self.request_id = request_id
        self.status = 0
        self.headers: tuple[HttpHeader, ...] = ()
        self._gate = gate
        self._inlet = Inlet()
        self._pieces: deque[bytes] = deque()
        self._arrived = Event()
        self._next_seq = 1
        self._done = False
        self._failure: ExecServerError | None = None
        self._held = 0

    def header(self, name: str) -> str | None:
        """Return the first value of a header, whatever the case of its name."""
        return _header(self.headers, name)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        """Return the next piece.  Raises `HttpFailed` for a cut body, `TransportClosed` after a loss."""
        self._inlet.reader = gevent.getcurrent()
        while not self._pieces:
            if self._failure is not None:
                raise type(self._failure)(str(self._failure))
            if self._done:
                raise StopIteration
            self._arrived.clear()
            with self._gate.waiting():
                self._arrived.wait()
        piece = self._pieces.popleft()
        self._held -= _PIECE_OVERHEAD + len(piece)
        self._update()
        return piece

    def read(self) -> bytes:
        """Return the rest of the body."""
        return b"".join(self)

    def close(self) -> None:
        """Take no more; what still comes is ignored, since the contract has no way to stop the server."""
        self._done = True
        self._drop()
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
        if self._has_ended:
            return delta.done
        if delta.seq != self._next_seq:
            self.fail(HttpFailed(f"piece {self._next_seq} of the body is missing"))
            return True
        self._next_seq += 1
        if delta.delta_base64:
            self._pieces.append(delta.delta_base64)
            self._held += _PIECE_OVERHEAD + len(delta.delta_base64)
        if delta.error is not None:
            self.fail(HttpFailed(delta.error))
        elif self._held > self._gate.hard_limit:
            self._drop()
            self.fail(HttpFailed("the body was not read fast enough"))
        else:
            self._done = delta.done
        self._update()
        return self._has_ended

    def fail(self, error: ExecServerError) -> None:
        """End the body with an error; what has arrived can still be taken."""
        if not self._has_ended:
            self._failure = error if isinstance(error, HttpFailed) else TransportClosed(str(error))
            self._update()

    @property
    def _has_ended(self) -> bool:
        return self._done or self._failure is not None

    def _drop(self) -> None:
        self._pieces.clear()
        self._held = 0

    def _update(self) -> None:
        # A stream that has ended must not stop the connection: nothing more can come for it.
        self._gate.update(self._inlet, 0 if self._has_ended else self._held)
        self._arrived.set()


class HttpClient:
    """Makes requests; `streams` maps request ids to the streams that get the session's notifications."""

    def __init__(self, session: Session, gate: Gate, streams: dict[str, HttpStream]) -> None:
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
        params = self._http_params(method, url, headers, body, timeout_ms, stream=False)
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
        params = self._http_params(method, url, headers, body, timeout_ms, stream=True)
        stream = HttpStream(self._gate, params.request_id)
        # Before the request: the first pieces may come before its answer.
        self._streams[params.request_id] = stream
        try:
            stream.begin(self._session.call(HTTP_REQUEST, params))
        except BaseException:
            self._streams.pop(params.request_id, None)
            raise
        return stream

    def _http_params(
        self,
        method: str,
        url: str,
        headers: Headers,
        body: bytes | None,
        timeout_ms: int | None,
        *,
        stream: bool,
    ) -> HttpRequestParams:
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        return HttpRequestParams(
            method=method,
            url=url,
            headers=tuple(HttpHeader(name=name, value=value) for name, value in pairs),
            body_base64=body,
            timeout_ms=timeout_ms,
            request_id=f"http-{next(self._ids)}",
            stream_response=stream,
        )


def _header(headers: tuple[HttpHeader, ...], name: str) -> str | None:
    wanted = name.lower()
    return next((header.value for header in headers if header.name.lower() == wanted), None)
