"""The blocking twin of `execserver_client.http`; `build.py docs` writes it from there."""

from __future__ import annotations

from typing import Any, Self

from execserver.client.rules.body_log import Headers, HttpResponse
from execserver.protocol.http import HttpHeader
from execserver_client import http as asynchronous
from execserver_client.sync import _shapes as shapes
from execserver_client.sync._portal import Portal


class HttpStream:
    """A response whose body is iterated as it comes: `status`, `headers` in order with repeats, pieces.

    It belongs to one connection: if that is lost, iteration raises `TransportClosed` after what had arrived.
    A slow reader stops the server; a stream that holds more than the higher limit for unread bytes, because
    others had to be read meanwhile, raises `HttpFailed`.
    """

    def __init__(self, portal: Portal, wrapped: asynchronous.HttpStream) -> None:
        self._portal = portal
        self._wrapped = wrapped

    @property
    def status(self) -> int:
        """As in `execserver_client.HttpStream`."""
        return self._wrapped.status

    @property
    def headers(self) -> tuple[HttpHeader, ...]:
        """As in `execserver_client.HttpStream`."""
        return self._wrapped.headers

    def header(self, name: str) -> str | None:
        """Return the first value of a header, whatever the case of its name."""
        return self._portal.run(self._wrapped.header, name)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        for item in self._portal.call(shapes.step, self._wrapped):
            return item
        raise StopIteration

    def read(self) -> bytes:
        """Return the rest of the body."""
        return self._portal.call(self._wrapped.read)

    def close(self) -> None:
        """Take no more; what still comes is ignored, since the contract has no way to stop the server."""
        self._portal.call(self._wrapped.aclose)

    def __enter__(self) -> Self:
        self._portal.call(self._wrapped.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._portal.call(self._wrapped.__aexit__, *error)


class Http:
    """`box.http`: requests that the server's machine makes.

    Methods raise `InvalidParamsError` for an invalid request, and `InternalError` if the other server cannot
    be reached or does not answer within `timeout` seconds, body included.  Any status is a success.
    """

    def __init__(self, portal: Portal, wrapped: asynchronous.Http) -> None:
        self._portal = portal
        self._wrapped = wrapped

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Headers = (),
        body: bytes | None = None,
        timeout: float | None = None,
    ) -> HttpResponse:
        """Make a request and return the response with its whole body."""
        return self._portal.call(
            self._wrapped.request,
            method,
            url,
            headers=headers,
            body=body,
            timeout=timeout,
        )

    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Headers = (),
        body: bytes | None = None,
        timeout: float | None = None,
    ) -> HttpStream:
        """Make a request and return behind the headers of the response; iterate the result for its body.

        ```python
        with box.http.stream("GET", url) as response:
            for piece in response:
                ...
        ```
        """
        found = self._portal.call(
            shapes.settle,
            lambda: self._wrapped.stream(method, url, headers=headers, body=body, timeout=timeout),
        )
        return HttpStream(self._portal, found)
