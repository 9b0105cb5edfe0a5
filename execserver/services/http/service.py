"""`http/request` for all connections, and the bounds of each.

A request is checked at once and in order (`HttpStreams.prepare`); what waits for the network runs in a
greenlet of the caller's.  Bounds: `MAX_ACTIVE` requests of one connection at a time, a further one is
refused; the buffered answers under way of all connections together, at which the answer that goes beyond
fails; one buffered answer, which has to fit into a message.  A body that is streamed is held in pieces
below 1 MiB, and read only as fast as the client takes it.

Nothing here is loaded before it is needed: the first request brings the HTTP library, the first https
one TLS.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Raw

from execserver.protocol.errors import InternalError, InvalidParams, InvalidRequest
from execserver.protocol.http import HttpRedirectPolicy, HttpRequestParams
from execserver.services.sink import MessageSink
from execserver.settings import Settings

if TYPE_CHECKING:
    from execserver.services.http.body import BodyStream, Budget
    from execserver.services.http.fetch import Answer, Fetcher
    from execserver.services.http.request import PreparedRequest

MAX_ACTIVE = 128  # requests of one connection; as many as files may be open
MAX_BUFFERED_BYTES = 256 * 1024 * 1024  # of answers that are put together, all connections
_LONGEST_TIMEOUT_S = 10 * 365 * 86_400.0  # what is longer would not fit into a timer


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
        from execserver.services.http.headers import checked_headers, is_token, secret_names
        from execserver.services.http.request import PreparedRequest
        from execserver.services.http.url import BadUrl, OtherScheme, parse

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
        """Wait for the head of the answer; raise InternalError."""
        from execserver.services.http.fetch import Fetcher, RequestFailed

        if self._fetcher is None:
            self._fetcher = Fetcher(self._environ, self._settings.max_redirects)
        try:
            return self._fetcher.fetch(request)
        except RequestFailed as failure:
            raise InternalError(f"http/request failed: {failure}") from failure

    def buffer(self, answer: Answer) -> Raw:
        """Wait for the whole body and return the result; closes the exchange; raise InternalError."""
        from execserver.services.http.body import Budget, buffered_result

        if self._budget is None:
            self._budget = Budget(MAX_BUFFERED_BYTES)
        return buffered_result(answer, self._settings.client_message_bytes, self._budget)


class HttpStreams:
    """The requests of one connection; `close` ends those that still send."""

    def __init__(self, service: HttpService, sink: MessageSink) -> None:
        self._service = service
        self._sink = sink
        self._streams: dict[str, BodyStream | None] = {}  # None until the head of the answer is here
        self._buffered = 0
        self._closed = False

    def prepare(self, params: HttpRequestParams) -> PreparedRequest:
        """Check a request and take a place for it, given back by `buffered` or `stream`; raise RpcError."""
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
        """Make a request and return the result with the whole body; raise InternalError."""
        try:
            return self._service.buffer(self._service.fetch(request))
        finally:
            self._buffered -= 1

    def stream(self, request: PreparedRequest) -> BodyStream:
        """Make a request and return its stream, to be started behind the result; raise InternalError."""
        from execserver.services.http.body import BodyStream

        request_id = request.request_id
        try:
            answer = self._service.fetch(request)
        except BaseException:
            self._streams.pop(request_id, None)
            raise
        stream = BodyStream(request_id, answer, self._sink, lambda: self._streams.pop(request_id, None))
        if self._closed:
            stream.close()
        else:
            self._streams[request_id] = stream
        return stream

    def close(self) -> None:
        """End all streams without a word: the client is gone."""
        self._closed = True
        for stream in list(self._streams.values()):
            if stream is not None:
                stream.close()
        self._streams.clear()
