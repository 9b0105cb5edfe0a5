"""Requests to a JSON API: no redirects, proxies by the environment variables, bodies and time bounded.

Connections, TLS and proxies are handled as for `http/request`.
"""

from __future__ import annotations

from collections.abc import Mapping

from execserver.http_client.exchange import BrokenResponse
from execserver.http_client.fetch import Answer, DeadlinePassed, Fetcher, RequestFailed
from execserver.http_client.request import PreparedRequest
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

    With `keeps`, connections are reused where the server allows it, until `close`.
    """

    def __init__(self, environ: Mapping[str, str], *, keeps: bool = False) -> None:
        self._fetcher = ReusingFetcher(environ) if keeps else Fetcher(environ, 0)

    def close(self) -> None:
        """Close kept connections."""
        if isinstance(self._fetcher, ReusingFetcher):
            self._fetcher.close()

    def call(
        self, method: str, url: str, fields: Fields, body: bytes = b"", *, timeout_s: float = 30.0
    ) -> Response:
        """Send one request and return the whole answer, of any status.  Raises CallFailed."""
        return self._send(prepare(method, url, fields, body, timeout_s))

    def post(self, url: str, fields: Fields, body: object, *, timeout_s: float = 30.0) -> Response:
        """Send a request with a JSON body; see `call`."""
        return self._send(prepare_post(url, fields, body, timeout_s))

    def _send(self, request: PreparedRequest) -> Response:
        try:
            answer = self._fetcher.fetch(request)
        except RequestFailed as failed:
            raise CallFailed(str(failed), _cause(failed)) from failed
        try:
            response = Response(answer.head.status, _read(answer))
        except BaseException:
            answer.exchange.close()
            raise
        if not (isinstance(self._fetcher, ReusingFetcher) and self._fetcher.keep(request, answer.exchange)):
            answer.exchange.close()
        return response


def _read(answer: Answer) -> bytes:
    pieces: list[bytes] = []
    size = 0
    try:
        with answer.deadline.running():
            while piece := answer.exchange.read():
                pieces.append(piece)
                size += len(piece)
                if size > MAX_REPLY_BYTES:
                    raise CallFailed(BAD_BODY, f"it is longer than {MAX_REPLY_BYTES} bytes")
    except DeadlinePassed:
        raise CallFailed(BAD_BODY, "operation timed out") from None
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
