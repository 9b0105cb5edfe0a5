"""A tunnel to a host that a credential may be sent to: its TLS is opened, and each request is looked at.

The process speaks TLS with this proxy, by a certificate of its own authority, and the proxy with the server,
whose certificate is verified.  A request goes on as it came, but for the framing and for stand-ins in the
headers that its provider reads; an answer goes back as it came.  What is no TLS, and TLS for another host, is
carried as in every tunnel.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, cast

from execserver.egress import answers
from execserver.egress.decisions import Question
from execserver.egress.hosts import BadHost, split_authority
from execserver.egress.http_heads import (
    CHUNKED,
    NO_BODY,
    BadHead,
    RequestHead,
    head_length,
    parse_request,
    written,
)
from execserver.eventloop.deadline import at_most
from execserver.eventloop.ends import End, for_gevent
from execserver.http_client.trust import NoTrust
from execserver.services.egress.dates import http_date
from execserver.services.egress.http_exchange import Exchange, Framing, UpstreamFailed
from execserver.services.egress.judging import Judge, Refused, Way
from execserver.services.egress.server_tls import ServerTls
from execserver.services.egress.streams import Incoming
from execserver.services.egress.upstream_tunnel import opened_tunnel

if TYPE_CHECKING:
    from gevent.ssl import SSLSocket

_HEAD_S = 15.0
_IDLE_S = 300.0  # between two requests
_HANDSHAKE_S = 15.0
_HTTPS_PORT = 443
_ECHOING = ("TRACE", "TRACK")  # their answer is the request, and the process would read what was put into it
_MISMATCH = "Host header does not match request target"
_UPSTREAM_FAILURE = "upstream failure"


class Interception:
    """Serves the requests of one tunnel; the socket is the caller's."""

    def __init__(
        self,
        incoming: Incoming,
        judge: Judge,
        question: Question,
        method: str | None,
        client: str,
        first: Way | None = None,
    ) -> None:
        """`first` is a connection to the host that is there already, and its owner's."""
        assert judge.masked is not None
        self._judge = judge
        self._masked = judge.masked
        self._question = question
        self._method = method
        self._client = client
        self._first = first
        self._tls = ServerTls(incoming, judge.masked.authority.context(question.host))
        # It receives and sends as a socket does, and nothing else is asked of it.
        self._near = Incoming(cast(End, self._tls))

    def serve(self) -> None:
        """Answer requests until the connection ends.  Raises OSError if it breaks."""
        if not self._has_agreed():
            return
        while self._serve_one():
            pass
        self._tls.end()

    def _has_agreed(self) -> bool:
        agreed = False
        try:
            with at_most(_HANDSHAKE_S):
                self._tls.handshake()
                agreed = True
        except ssl.SSLError as error:
            reason = error.reason or "no TLS"
            host = self._question.host
            text = f"a program does not trust its proxy as {host} ({reason}): no credential goes there"
            self._masked.warn(host, text)
        return agreed

    def _serve_one(self) -> bool:
        try:
            head = self._near.take(head_length, _IDLE_S, _HEAD_S)
            if not head:
                return False
            request = parse_request(head)
            framing = request.framing()
        except BadHead:
            self._tls.sendall(answers.junk(http_date()))
            return False
        if not self._is_for_this_host(request):
            self._tls.sendall(answers.plain(400, _MISMATCH, http_date(), closes=True))
            return False
        return self._passed_on(request, framing)

    def _is_for_this_host(self, request: RequestHead) -> bool:
        """Return whether target and Host name the host of the tunnel, whose certificate the server has."""
        hosts = request.all(b"host")
        is_target = request.target.startswith("/") or (request.method, request.target) == ("OPTIONS", "*")
        if len(hosts) != 1 or not is_target or request.method == "CONNECT":
            return False
        try:
            place = split_authority(hosts[0].decode("latin-1"), _HTTPS_PORT)
        except BadHost:
            return False
        return place == (self._question.host, self._question.port)

    def _passed_on(self, request: RequestHead, framing: Framing) -> bool:
        closes = not request.keeps_alive or request.minor == 0
        try:
            far = self._connected()
        except (Refused, OSError, NoTrust) as error:
            host = self._question.host
            self._masked.warn(host, f"no connection to {host}, to which a credential may be sent: {error}")
            return self._failed(closes=closes or framing[0] is not NO_BODY)
        with far:
            exchange = Exchange(self._near, far, request, closes=closes)
            try:
                return exchange.run(self._head(request), framing)
            except UpstreamFailed as failed:
                return failed.can_be_answered and self._failed(closes=closes or framing[0] is not NO_BODY)

    def _connected(self) -> End:
        """Return a TLS connection to the host.  Raises Refused, OSError and NoTrust."""
        way, self._first = self._first, None
        if way is None:
            way = self._judge.connect(self._question, self._method, self._client)
        try:
            if way.proxy is not None and not opened_tunnel(Incoming(way.sock), way.proxy, self._question):
                raise OSError("the upstream proxy does not connect")
            tls = self._masked.tls()
        except BaseException:
            way.sock.close()
            raise
        found: list[SSLSocket] = []
        with at_most(_HANDSHAKE_S):
            found.append(tls.wrap(for_gevent(way.sock), self._question.host))
        if not found:
            raise OSError("the server's handshake takes too long")
        return cast(End, found[0])

    def _head(self, request: RequestHead) -> bytes:
        question = self._question
        fields = request.passed_on()
        if request.method.upper() not in _ECHOING:
            fields = self._masked.masking.fields(fields, question.host, question.port, request.target)
        if request.framing()[0] is CHUNKED:
            fields.append((b"transfer-encoding", b"chunked"))
        return written(f"{request.method} {request.target} HTTP/1.1".encode(), fields)

    def _failed(self, *, closes: bool) -> bool:
        self._tls.sendall(answers.plain(502, _UPSTREAM_FAILURE, http_date(), closes=closes))
        return not closes
