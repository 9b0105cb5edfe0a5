"""Requests to a JSON API: no redirects, proxies by the environment variables, bodies and time bounded.

Connections, TLS and proxies are handled as for `http/request`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec

from execserver.http_client.exchange import BrokenResponse
from execserver.http_client.fetch import Answer, DeadlinePassed, Fetcher, RequestFailed
from execserver.http_client.headers import Headers
from execserver.http_client.request import PreparedRequest
from execserver.http_client.url import BadUrl, Url, parse
from execserver.protocol.errors import os_error_text
from execserver.remote.connection_reuse import ReusingFetcher

MAX_REPLY_BYTES = 1024 * 1024
_BAD_BODY = "error decoding response body"
_CONTROLS = bytes(range(32)) + b"\x7f"

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding JSON of a stranger raises."""

Fields = Iterable[tuple[str, str]]


class CallFailed(Exception):
    """There is no usable answer; `cause` is the error text of the network or the peer.

    `is_transient` is False where another try cannot help.
    """

    def __init__(self, text: str, cause: str = "", *, is_transient: bool = True) -> None:
        super().__init__(text)
        self.text = text
        self.cause = cause
        self.is_transient = is_transient


class Response(NamedTuple):
    """A whole answer."""

    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        """True if the status is 2xx."""
        return 200 <= self.status < 300

    @property
    def status_text(self) -> str:
        """The status as error texts show it, e.g. `503 Service Unavailable`."""
        from http import HTTPStatus  # late: only errors show it

        try:
            return f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            return f"{self.status} <unknown status code>"

    def json(self) -> dict[str, object]:
        """Return the body as a JSON object.  Raises CallFailed."""
        try:
            return msgspec.json.decode(self.body, type=dict[str, object])
        except UNREADABLE as error:
            raise CallFailed(_BAD_BODY, str(error), is_transient=False) from None


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
        request = _prepare(method, url, fields, body, timeout_s)
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

    def post(self, url: str, fields: Fields, body: object, *, timeout_s: float = 30.0) -> Response:
        """Send a request with a JSON body; see `call`."""
        head = [*fields, ("content-type", "application/json")]
        return self.call("POST", url, head, msgspec.json.encode(body), timeout_s=timeout_s)


def registry_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for registry and rendezvous: as at the reference, only SSL_CERT_FILE adds a CA."""
    return {name: value for name, value in environ.items() if name != "CODEX_CA_CERTIFICATE"}


@lru_cache(maxsize=16)
def _parsed(url: str) -> Url:
    return parse(url)


def _prepare(method: str, url: str, fields: Fields, body: bytes, timeout_s: float) -> PreparedRequest:
    headers = Headers()
    for name, value in fields:
        data = value.encode("utf-8", "surrogateescape")
        if data.translate(None, _CONTROLS) != data:
            raise CallFailed(
                "builder error", f"the header {name} holds a control character", is_transient=False
            )
        headers.add(name.encode("ascii"), data)
    headers.add(b"accept", b"*/*")
    try:
        target = _parsed(url)
    except BadUrl as error:
        raise CallFailed("builder error", str(error), is_transient=False) from None
    return PreparedRequest(
        request_id="",
        method=method,
        url=target,
        headers=headers,
        secrets=frozenset(),
        body=body,
        timeout_s=timeout_s,
        follow=False,
        streamed=False,
    )


def _read(answer: Answer) -> bytes:
    pieces: list[bytes] = []
    size = 0
    try:
        with answer.deadline.running():
            while piece := answer.exchange.read():
                pieces.append(piece)
                size += len(piece)
                if size > MAX_REPLY_BYTES:
                    raise CallFailed(_BAD_BODY, f"it is longer than {MAX_REPLY_BYTES} bytes")
    except DeadlinePassed:
        raise CallFailed(_BAD_BODY, "operation timed out") from None
    except BrokenResponse as broken:
        raise CallFailed(_BAD_BODY, str(broken)) from None
    return b"".join(pieces)


def _cause(failed: RequestFailed) -> str:
    cause = failed.__cause__
    if isinstance(cause, DeadlinePassed):
        return "operation timed out"
    if isinstance(cause, OSError) and cause.errno and type(cause).__module__ == "builtins":
        return os_error_text(cause.errno)
    return "" if cause is None else str(cause)
