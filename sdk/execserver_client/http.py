"""HTTP requests made by the server's machine: whole responses, and bodies that come in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count
from types import TracebackType
from typing import Final, Self

from execserver.client.errors import ExecServerError
from execserver.client.greenlets.router import Router
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
    HttpRequestParams,
    HttpRequestResponse,
)
from execserver.protocol.methods import HTTP_REQUEST
from execserver_client._flow import Gate, Inlet
from execserver_client._opening import Opening
from execserver_client._session import Session

__all__ = ["Headers", "Http", "HttpFailed", "HttpResponse", "HttpStream"]

_MS: Final = 1000


class _Body:
    """What gets the pieces of one body, and what its reader waits at."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._inlet = Inlet()
        self._log = BodyLog()
        self._arrived = asyncio.Event()

    async def take(self) -> bytes:
        """Return the next piece, empty bytes at the end.  Raises what ended the body early."""
        self._inlet.read_by_caller()
        while (piece := self._log.take()) is None:
            self._arrived.clear()
            with self._gate.waiting():
                await self._arrived.wait()
        self._update()
        return piece

    def close(self) -> None:
        """Take no more."""
        self._log.close()
        self._update()

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


class HttpStream:
    """A response whose body is iterated as it comes: `status`, `headers` in order with repeats, pieces.

    It belongs to one connection: if that is lost, iteration raises `TransportClosed` after what had arrived.
    A slow reader stops the server; a stream that holds more than the higher limit for unread bytes, because
    others had to be read meanwhile, raises `HttpFailed`.
    """

    def __init__(self, head: HttpRequestResponse, body: _Body, close: Callable[[], None]) -> None:
        """Use `Http.stream` instead."""
        self.status: int = head.status
        self.headers: tuple[HttpHeader, ...] = head.headers
        self._body = body
        self._close = close

    def header(self, name: str) -> str | None:
        """Return the first value of a header, whatever the case of its name."""
        return first_header(self.headers, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the next piece.  Raises `HttpFailed` for a cut body, `TransportClosed` after a loss."""
        piece = await self._body.take()
        if not piece:
            raise StopAsyncIteration
        return piece

    async def read(self) -> bytes:
        """Return the rest of the body."""
        return b"".join([piece async for piece in self])

    async def aclose(self) -> None:
        """Take no more; what still comes is ignored, since the contract has no way to stop the server."""
        self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Http:
    """`box.http`: requests that the server's machine makes.

    Methods raise `InvalidParamsError` for an invalid request, and `InternalError` if the other server cannot
    be reached or does not answer within `timeout` seconds, body included.  Any status is a success.
    """

    def __init__(self, session: Session, gate: Gate, router: Router) -> None:
        """Use `Box.http` instead."""
        self._session = session
        self._gate = gate
        self._router = router
        self._ids = count(1)

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Headers = (),
        body: bytes | None = None,
        timeout: float | None = None,
    ) -> HttpResponse:
        """Make a request and return the response with its whole body."""
        params = self._params(method, url, headers, body, timeout, stream=False)
        return HttpResponse(await self._session.call(HTTP_REQUEST, params))

    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Headers = (),
        body: bytes | None = None,
        timeout: float | None = None,
    ) -> Opening[HttpStream]:
        """Make a request and return behind the headers of the response; iterate the result for its body.

        ```python
        async with box.http.stream("GET", url) as response:
            async for piece in response:
                ...
        ```
        """
        return Opening(self._open(self._params(method, url, headers, body, timeout, stream=True)))

    async def _open(self, params: HttpRequestParams) -> HttpStream:
        # Before the request: the first pieces may come before its answer.
        body = self._router.streams[params.request_id] = _Body(self._gate)
        try:
            head = await self._session.call(HTTP_REQUEST, params)
        except BaseException:
            self._end(params.request_id, body)
            raise
        return HttpStream(head, body, partial(self._end, params.request_id, body))

    def _end(self, request_id: str, body: _Body) -> None:
        self._router.streams.pop(request_id, None)
        body.close()

    def _params(
        self,
        method: str,
        url: str,
        headers: Headers,
        body: bytes | None,
        timeout: float | None,
        *,
        stream: bool,
    ) -> HttpRequestParams:
        limit = None if timeout is None else max(1, round(timeout * _MS))
        return http_params(f"http-{next(self._ids)}", method, url, headers, body, limit, stream=stream)
