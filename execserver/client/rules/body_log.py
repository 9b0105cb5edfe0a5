"""One HTTP response as a client gets it: whole, or its body in numbered pieces.  Without I/O.

Pieces come in order on one connection; a number that is missing, or a body that ended early, fails the body
after what had come.  `held` is the memory of what nobody has taken yet, which the owner bounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from execserver.client.errors import ExecServerError, TransportClosed, kept
from execserver.client.rules import wire
from execserver.protocol.http import (
    HttpHeader,
    HttpRequestBodyDeltaNotification,
    HttpRequestParams,
    HttpRequestResponse,
)

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
        return first_header(self.headers, name)


class BodyLog:
    """The pieces of one body that wait to be taken."""

    __slots__ = ("_done", "_failure", "_next_seq", "_pieces", "held")

    def __init__(self) -> None:
        self.held = 0
        self._pieces: deque[bytes] = deque()
        self._next_seq = 1
        self._done = False
        self._failure: ExecServerError | None = None

    @property
    def ended(self) -> bool:
        """True once nothing more can come; some pieces may still wait to be taken."""
        return self._done or self._failure is not None

    def take(self) -> bytes | None:
        """Return the next piece, empty bytes at the end, None if nothing is ready.

        Raises what `fail` was called with, and `HttpFailed` for a body that was cut.
        """
        if self._pieces:
            piece = self._pieces.popleft()
            self.held -= _PIECE_OVERHEAD + len(piece)
            return piece
        if self._failure is not None:
            raise kept(self._failure)
        return b"" if self._done else None

    def add(self, delta: HttpRequestBodyDeltaNotification, bound: int) -> bool:
        """Add a piece; return True if no more will come.  A body of which more than `bound` is held fails."""
        if self.ended:
            return delta.done
        if delta.seq != self._next_seq:
            self.fail(HttpFailed(f"piece {self._next_seq} of the body is missing"))
            return True
        self._next_seq += 1
        if delta.delta_base64:
            self._pieces.append(delta.delta_base64)
            self.held += _PIECE_OVERHEAD + len(delta.delta_base64)
        if delta.error is not None:
            self.fail(HttpFailed(delta.error))
        elif self.held > bound:
            self._drop()
            self.fail(HttpFailed("the body was not read fast enough"))
        else:
            self._done = delta.done
        return self.ended

    def fail(self, error: ExecServerError) -> None:
        """End the body with an error; what has arrived can still be taken."""
        if not self.ended:
            self._failure = error if isinstance(error, HttpFailed) else TransportClosed(str(error))

    def close(self) -> None:
        """Take no more: what waits and what still comes is dropped."""
        self._done = True
        self._drop()

    def _drop(self) -> None:
        self._pieces.clear()
        self.held = 0


def http_params(
    request_id: str,
    method: str,
    url: str,
    headers: Headers,
    body: bytes | None,
    timeout_ms: int | None,
    *,
    stream: bool,
) -> HttpRequestParams:
    """Return the params of a request whose body comes whole or, with `stream`, in pieces."""
    wire.check_bytes(body)
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return HttpRequestParams(
        method=method,
        url=url,
        headers=tuple(HttpHeader(name=name, value=value) for name, value in pairs),
        body_base64=body,
        timeout_ms=timeout_ms,
        request_id=request_id,
        stream_response=stream,
    )


def first_header(headers: tuple[HttpHeader, ...], name: str) -> str | None:
    """Return the first value of a header, whatever the case of its name."""
    wanted = name.lower()
    return next((header.value for header in headers if header.name.lower() == wanted), None)
