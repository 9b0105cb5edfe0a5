"""`http/request` for all connections, and its limits.

A request is checked at once and in order (`HttpStreams.prepare`); what waits for the network runs in a
greenlet of the caller.  Limits: a connection has at most `MAX_ACTIVE` requests at a time, a further one is
refused.  The buffered answers of all connections share `MAX_BUFFERED_BYTES`; the one that exceeds it fails.
One buffered answer has to fit into a message.  A streamed body is held in pieces below 1 MiB, and read only
as fast as the client takes it.

Nothing is loaded before it is needed: the first request imports the HTTP library, the first one over https
TLS.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Raw

from execserver.protocol.errors import InternalError, InvalidParams, InvalidRequest
from execserver.protocol.http import HttpRedirectPolicy, HttpRequestParams
from execserver.services.clients.sink import MessageSink
from execserver.settings import Settings

if TYPE_CHECKING:
    from execserver.http_client.fetch import Answer, Fetcher
    from execserver.http_client.request import PreparedRequest
    from execserver.services.http.body import BodyStream, Budget

MAX_ACTIVE = 128  # requests of one connection; as many as files may be open
MAX_BUFFERED_BYTES = 256 * 1024 * 1024  # of buffered answers, all connections together
_LONGEST_TIMEOUT_S = 10 * 365 * 86_400.0  # a longer one would not fit into a timer


class HttpService:
    """Makes the requests; shared by all connections."""

    def __init__(self, settings: Settings, environ: Mapping[str, str] | None = None) -> None:
        """Take proxies, certificates and header values from `environ`, by default the server's own."""
        self._settings = settings
        self._environ = dict(os.environ if environ is None else environ)
        self._fetcher: Fetcher | None = None
        self._budget: Budget | None = None

    def prepare(self, params: HttpRequestParams) -> PreparedRequest:
        """Check method, URL, scheme and headers, in this order; raise InvalidParams."""
        from execserver.http_client.headers import is_token
        from execserver.http_client.request import PreparedRequest
        from execserver.http_client.url import BadUrl, OtherScheme, parse
        from execserver.services.http.contract_headers import checked_headers, secret_names

        if not is_token(params.method):
            raise InvalidParams("http/request method is invalid: invalid HTTP method")
        try:
            url = parse(params.url)
        except OtherScheme as other:
            raise InvalidParams(
                f"http/request only supports http and https URLs, got {other.scheme}"
            ) from None
        except BadUrl as error:
            raise InvalidParams(f"http/request url is invalid: {error}") from None
        headers = checked_headers(url.credentials, params.headers, self._environ)
        timeout = params.timeout_ms
        return PreparedRequest(
            request_id=params.request_id,
            method=params.method,
            url=url,
            headers=headers,
            secrets=secret_names(params.headers),
            body=params.body_base64 or b"",
            timeout_s=None if timeout is None else min(timeout / 1000, _LONGEST_TIMEOUT_S),
            follow=params.redirect_policy is HttpRedirectPolicy.FOLLOW,
            streamed=params.stream_response,
        )

    def fetch(self, request: PreparedRequest) -> Answer:
        """Send the request and wait for the head of the answer; raise InternalError."""
        from execserver.http_client.cookies import CookieJar
        from execserver.http_client.fetch import Fetcher, RequestFailed

        if self._fetcher is None:
            self._fetcher = Fetcher(self._environ, self._settings.max_redirects, CookieJar())
        try:
            return self._fetcher.fetch(request)
        except RequestFailed as failure:
            raise InternalError(f"http/request failed: {failure}") from failure

    def buffer(self, answer: Answer) -> Raw:
        """Wait for the whole body, close the exchange and return the result; raise InternalError."""
        from execserver.services.http.body import Budget, buffered_result

        if self._budget is None:
            self._budget = Budget(MAX_BUFFERED_BYTES)
        return buffered_result(answer, self._settings.client_message_bytes, self._budget)


class HttpStreams:
    """The requests of one connection; `close` ends the body streams that still send."""

    def __init__(self, service: HttpService, sink: MessageSink) -> None:
        self._service = service
        self._sink = sink
        self._streams: dict[str, BodyStream | None] = {}  # by request id; None until the head has arrived
        self._buffered = 0  # buffered requests in progress
        self._closed = False

    def prepare(self, params: HttpRequestParams) -> PreparedRequest:
        """Check a request and take a place for it; raise RpcError.

        `buffered` gives the place back, or the end of the stream that `stream` returns.
        """
        if params.stream_response and params.request_id in self._streams:
            raise InvalidParams(
                f"http/request streamResponse requestId `{params.request_id}` is already active"
            )
        request = self._service.prepare(params)
        if len(self._streams) + self._buffered >= MAX_ACTIVE:
            raise InvalidRequest(f"at most {MAX_ACTIVE} HTTP requests may be active per connection")
        if request.streamed:
            self._streams[request.request_id] = None
        else:
            self._buffered += 1
        return request

    def buffered(self, request: PreparedRequest) -> Raw:
        """Make a request and return its result with the whole body; raise InternalError."""
        try:
            return self._service.buffer(self._service.fetch(request))
        finally:
            self._buffered -= 1

    def stream(self, request: PreparedRequest) -> BodyStream:
        """Make a request and return its stream, which the caller starts behind the result.

        Raises InternalError.
        """
        from execserver.services.http.body import BodyStream

        request_id = request.request_id
        try:
            answer = self._service.fetch(request)
        except BaseException:
            self._streams.pop(request_id, None)
            raise
        stream = BodyStream(request_id, answer, self._sink, lambda: self._streams.pop(request_id, None))
        if self._closed:  # the client left while the request waited for its answer
            stream.close()
        else:
            self._streams[request_id] = stream
        return stream

    def interrupt(self, reason: str) -> None:
        """End all streams with a last message that says why."""
        for stream in list(self._streams.values()):
            if stream is not None:
                stream.interrupt(reason)
        self._streams.clear()

    def close(self) -> None:
        """End all streams without a message: the client is gone."""
        self._closed = True
        for stream in list(self._streams.values()):
            if stream is not None:
                stream.close()
        self._streams.clear()
