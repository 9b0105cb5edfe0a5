"""Requests to a JSON API: no redirects, proxies by the environment variables, bodies and time bounded.

Connections, TLS and proxies are handled as for `http/request`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from execserver.http_client.exchange import Exchange
from execserver.http_client.fetch import Answer, DeadlinePassed, Fetcher, RequestFailed
from execserver.http_client.request import PreparedRequest
from execserver.http_client.response_events import BrokenResponse
from execserver.protocol.errors import os_error_text
from execserver.remote.answers import (
    BAD_BODY,
    MAX_REPLY_BYTES,
    CallFailed,
    Fields,
    Response,
)
from execserver.remote.connection_reuse import ReusingFetcher
from execserver.remote.requests import prepare, prepare_post


class ApiClient:
    """Sends requests with the proxies and certificates of one environment.

    With `keeps`, connections are reused where the server allows it, until `close`.  `meanwhile` is called
    whenever a request was sent on a new connection, while the server thinks.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        keeps: bool = False,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self._fetcher = ReusingFetcher(environ) if keeps else Fetcher(environ, 0)
        self._fetcher.meanwhile = meanwhile  # nothing is loaded for answers, which are plain ones

    def close(self) -> None:
        """Close kept connections."""
        if isinstance(self._fetcher, ReusingFetcher):
            self._fetcher.close()

    def call(
        self, method: str, url: str, fields: Fields, body: bytes = b"", *, timeout_s: float = 30.0
    ) -> Response:
        """Send one request and return the whole answer, of any status.  Raises CallFailed."""
        return Pending(self._fetcher, prepare(method, url, fields, body, timeout_s)).answered()

    def post(self, url: str, fields: Fields, body: object, *, timeout_s: float = 30.0) -> Response:
        """Send a request with a JSON body; see `call`."""
        return self.begin_post(url, fields, body, timeout_s=timeout_s).answered()

    def begin_post(self, url: str, fields: Fields, body: object, *, timeout_s: float | None) -> Pending:
        """Begin such a request: over a kept connection it is sent now.  Does not wait.  Raises CallFailed."""
        return Pending(self._fetcher, prepare_post(url, fields, body, timeout_s))


class Pending:
    """A request that has been sent if there is a connection for it; `close` follows in any case."""

    __slots__ = ("_exchange", "_fetcher", "_has_answer", "_request")

    def __init__(self, fetcher: Fetcher, request: PreparedRequest) -> None:
        self._fetcher = fetcher
        self._request = request
        self._exchange = fetcher.begin(request) if isinstance(fetcher, ReusingFetcher) else None
        self._has_answer = False

    def when_answered(self, act: Callable[[], None]) -> bool:
        """Have the loop call `act` once something of the answer is there; False if it was not sent yet."""
        if self._exchange is None:
            return False
        self._exchange.when_readable(act)
        return True

    def is_answered(self) -> bool:
        """Return whether all of the answer is there; does not wait."""
        return self._exchange is not None and self._exchange.has_whole_response()

    def answered(self) -> Response:
        """Return what `wait` does, and close."""
        try:
            return self.wait()
        finally:
            self.close()

    def wait(self) -> Response:
        """Return the whole answer, of any status; send the request first if that was not done.

        Raises CallFailed.
        """
        fetcher, request = self._fetcher, self._request
        begun, self._exchange = self._exchange, None
        try:
            if begun is not None and isinstance(fetcher, ReusingFetcher):
                answer = fetcher.finish(request, begun)
            else:
                answer = fetcher.fetch(request)
        except RequestFailed as failed:
            raise CallFailed(str(failed), _cause(failed)) from failed
        self._exchange = answer.exchange
        response = Response(answer.head.status, _read(answer))
        self._has_answer = True
        return response

    def close(self) -> None:
        """Keep the connection for another request if that can be; else close it."""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        fetcher = self._fetcher
        is_kept = (
            self._has_answer and isinstance(fetcher, ReusingFetcher) and fetcher.keep(self._request, exchange)
        )
        if not is_kept:
            exchange.close()


def _read(answer: Answer) -> bytes:
    if answer.exchange.is_whole:
        return _joined(answer.exchange)
    try:
        with answer.deadline.running():
            return _joined(answer.exchange)
    except DeadlinePassed:
        raise CallFailed(BAD_BODY, "operation timed out") from None


def _joined(exchange: Exchange) -> bytes:
    pieces: list[bytes] = []
    size = 0
    try:
        while piece := exchange.read():
            pieces.append(piece)
            size += len(piece)
            if size > MAX_REPLY_BYTES:
                raise CallFailed(BAD_BODY, f"it is longer than {MAX_REPLY_BYTES} bytes")
    except BrokenResponse as broken:
        raise CallFailed(BAD_BODY, str(broken)) from None
    return b"".join(pieces)


def _cause(failed: RequestFailed) -> str:
    cause = failed.__cause__
    if isinstance(cause, DeadlinePassed):
        return "operation timed out"
    if isinstance(cause, OSError) and cause.errno and type(cause).__module__ == "builtins":
        return os_error_text(cause.errno)
    return "" if cause is None else str(cause)
