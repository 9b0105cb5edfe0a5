"""From a prepared request to the head of its response: proxies, TLS, redirects, and the deadline.

One connection per request: nothing is kept open, so nothing has to be watched in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import gevent
from gevent import socket

from execserver.http_client.connect import SocketConnector
from execserver.http_client.exchange import Exchange, load_parser
from execserver.http_client.proxy import Proxies, Proxy, UnsupportedProxy, tunnel_request
from execserver.http_client.redirects import UnfollowableRedirect, next_request
from execserver.http_client.request import MAX_URL_CHARACTERS, PreparedRequest
from execserver.http_client.response_events import BrokenResponse, ResponseHead
from execserver.http_client.url import Url

if TYPE_CHECKING:
    from execserver.http_client.cookies import CookieJar
    from execserver.http_client.tls import Tls


_ENDLESS = nullcontext()


class RequestFailed(Exception):
    """There is no response; the message says why, in the contract's words where it has some."""


class DeadlinePassed(Exception):
    """The request's time is up."""


class Deadline:
    """The time limit of a request, over all its steps."""

    def __init__(self, timeout_s: float | None) -> None:
        self._at = None if timeout_s is None else time.monotonic() + timeout_s

    def running(self) -> AbstractContextManager[object]:
        """Return a context that raises DeadlinePassed when the time is up; raise it if it is up already."""
        if self._at is None:
            return _ENDLESS
        left = self._at - time.monotonic()
        if left <= 0:
            raise DeadlinePassed
        return gevent.Timeout(left, DeadlinePassed)


class Answer(NamedTuple):
    """The head of a final response, and the exchange to read the body from, which the caller closes."""

    head: ResponseHead
    exchange: Exchange
    deadline: Deadline


class Fetcher:
    """Sends requests with the proxies and certificates of one environment.

    With `cookies`, those that the jar keeps go with each request that has none of its client's.
    """

    def __init__(
        self, environ: Mapping[str, str], max_redirects: int, cookies: CookieJar | None = None
    ) -> None:
        self._environ = environ
        self.meanwhile: Callable[[], None] = load_parser  # called while a server thinks
        self._cookies = cookies
        self._max_redirects = max_redirects
        self._proxies = Proxies(environ)
        self._connector = SocketConnector()
        self._tls: Tls | None = None

    def fetch(self, request: PreparedRequest, deadline: Deadline | None = None) -> Answer:
        """Return the answer once its head has arrived; a `deadline` that runs already is kept.

        Raises RequestFailed.  It names the URL that the client asked for, wherever redirects had led by then.
        """
        deadline = deadline or Deadline(request.timeout_s)
        asked = request.url.text
        for _ in range(self._max_redirects + 1):
            try:
                with deadline.running():
                    head, exchange = self._ask(request)
            except (DeadlinePassed, OSError, BrokenResponse) as error:
                raise not_answered(asked) from error
            try:
                following = self._following(request, head)
            except RequestFailed:
                exchange.close()
                raise
            if following is None:
                return Answer(head, exchange, deadline)
            exchange.close()
            last, request = request, following
        raise RequestFailed(f"error following redirect for url ({last.url.text})")

    def _following(self, request: PreparedRequest, head: ResponseHead) -> PreparedRequest | None:
        if not request.follow:
            return None
        try:
            return next_request(request, head.status, head.first(b"location"))
        except UnfollowableRedirect as redirect:
            raise RequestFailed(f"builder error for url ({redirect.url})") from None

    def _ask(self, request: PreparedRequest) -> tuple[ResponseHead, Exchange]:
        """Send one request and wait for the head of its response."""
        url = request.url
        if len(url.text) > MAX_URL_CHARACTERS:
            raise RequestFailed(f"builder error for url ({url.text})")
        try:
            proxy = self._proxies.proxy_for(url)
        except UnsupportedProxy as error:
            raise RequestFailed(str(error)) from None
        if self._cookies is None:
            return self._send(self._open(request, proxy), request, proxy)
        head, exchange = self._send(self._open(request, proxy), self._with_cookies(request), proxy)
        self._cookies.store(url, head.lines, time.time())
        return head, exchange

    def _with_cookies(self, request: PreparedRequest) -> PreparedRequest:
        """Return the request with the jar's cookies, unless the client sends some itself."""
        found = self._cookies.header(request.url, time.time()) if self._cookies is not None else None
        if found is None or b"cookie" in request.headers:
            return request
        headers = request.headers.copy()  # not the client's: a redirect elsewhere must not get them
        headers.set(b"cookie", found)
        return request._replace(headers=headers)

    def _send(
        self, exchange: Exchange, request: PreparedRequest, proxy: Proxy | None
    ) -> tuple[ResponseHead, Exchange]:
        """Send a request over its connection and wait for the head; closes the connection on an error."""
        try:
            exchange.send(encoded(request, proxy))
            self.meanwhile()
            return exchange.receive_head(), exchange
        except BaseException:
            exchange.close()
            raise

    def _open(self, request: PreparedRequest, proxy: Proxy | None) -> Exchange:
        """Connect to the server, through the proxy if there is one."""
        url = request.url
        host, port = url.address if proxy is None else (proxy.host, proxy.port)
        if url.scheme == "http":
            return Exchange(self._connector.connect(host, port), request.method)
        tls = self._ready_tls()
        sock = self._connector.connect(host, port)
        if proxy is not None:
            open_tunnel(sock, url, proxy)
        return Exchange(tls.wrap(sock, url.address[0]), request.method, tls.would_block)

    def _ready_tls(self) -> Tls:
        from execserver.http_client.tls import Tls  # late: takes 40 ms, and plain http needs none
        from execserver.http_client.trust import NoTrust

        if self._tls is None:
            try:
                self._tls = Tls(self._environ)
            except NoTrust as error:
                raise RequestFailed(str(error)) from None
        return self._tls


def encoded(request: PreparedRequest, proxy: Proxy | None) -> bytes:
    """Return the bytes to send to the server, or to the proxy before it."""
    if proxy is None or request.url.scheme != "http":
        return request.encode()
    return request.encode(absolute=True, proxy_authorization=proxy.authorization)


def not_answered(url: str) -> RequestFailed:
    """Return the error for a request that got no response."""
    return RequestFailed(f"error sending request for url ({url})")


def open_tunnel(sock: socket.socket, url: Url, proxy: Proxy) -> None:
    """Ask a proxy for a tunnel to the server; closes the socket if there is none.

    Raises BrokenResponse or OSError.
    """
    exchange = Exchange(sock, "CONNECT")
    try:
        exchange.send(tunnel_request(url, proxy))
        status = exchange.receive_head().status
        if not 200 <= status < 300:
            raise BrokenResponse(f"the proxy answered {status}")
    except BaseException:
        exchange.close()
        raise
