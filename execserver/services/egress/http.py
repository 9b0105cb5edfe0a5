"""One HTTP connection of a process to its proxy: each request is judged by itself.

A plain request goes on in origin form, over a connection of its own or, if that does no harm, over the one of
the request before it; after CONNECT bytes are carried.  A head that could be read in two ways is answered
with 400 and ends the connection: nothing behind it is looked at.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from execserver.egress import answers
from execserver.egress.decisions import UNIX_SOCKET, Protocol, Question
from execserver.egress.http_heads import BY_LENGTH, NO_BODY, BadHead, head_length
from execserver.egress.http_requests import Asked
from execserver.services.egress.dates import http_date
from execserver.services.egress.http_exchange import Exchange, UpstreamFailed
from execserver.services.egress.judging import Judge, Refused, Way
from execserver.services.egress.kept_way import KeptWay
from execserver.services.egress.streams import Incoming, send
from execserver.services.egress.tls_guard import TlsGuard
from execserver.services.egress.tunnel import Tunnel
from execserver.services.egress.upstream_tunnel import opened_tunnel

if TYPE_CHECKING:
    from execserver.eventloop.ends import End

HEAD_S = 15.0
IDLE_S = 300.0  # between two requests
_DROPPED_BODY_BYTES = 64 * 1024  # of a refused request; a longer one ends the connection
_UNIX_SOCKET_FIELD = b"x-unix-socket"
_NO_SOCKETS = "unix sockets unsupported"
_UPSTREAM_FAILURE = "upstream failure"


class _Unreachable(Exception):
    """There is no connection to where a request leads."""


class HttpConnection:
    """Serves one client until one of the two ends the connection; the socket is the caller's."""

    def __init__(self, sock: End, client: str, judge: Judge) -> None:
        self._sock = sock
        self._client = client
        self._judge = judge
        self._incoming = Incoming(sock)
        self._kept = KeptWay()
        self._begun: End | None = None  # a connection for a tunnel
        self._tunnel: Tunnel | None = None

    def serve(self) -> Tunnel | None:
        """Answer requests until the connection ends, or is to be carried: then the socket is the tunnel's.

        Raises OSError if it breaks.
        """
        try:
            while self._serve_one():
                pass
        finally:
            self._kept.close()
            if self._begun is not None:
                self._begun.close()
        return self._tunnel

    def _serve_one(self) -> bool:
        """Answer one request; return whether another may follow."""
        try:
            head = self._incoming.take(head_length, IDLE_S, HEAD_S)
            if not head:
                return False
            asked = self._judge.heads.read(head)
        except BadHead:
            send(self._sock, answers.junk(http_date()))
            return False
        if asked.request.method == "CONNECT":
            if asked.framing[0] is not NO_BODY:
                send(self._sock, answers.junk(http_date()))
                return False
            return self._connect(asked)
        return self._plain(asked)

    def _connect(self, asked: Asked) -> bool:
        closes = not asked.request.keeps_alive
        question = asked.question
        if question is None:
            send(self._sock, answers.plain(400, asked.refusal, http_date(), closes=closes))
            return not closes
        # The reference says yes before it is connected, and clients are told of a failure by the end.
        verdict = self._judge.admit(question, "CONNECT", self._client, partial(self._say_yes, question))
        if not verdict.allows:
            send(self._sock, answers.tunnel_blocked(verdict, http_date(), closes=closes))
            return not closes
        near = TlsGuard(self._incoming, self._judge, question, "CONNECT", self._client)
        if near.is_intercepted:
            from execserver.services.egress.interception import Interception

            Interception(near, self._judge, question, "CONNECT", self._client).serve()
            return False
        begun, self._begun = self._begun, None
        try:
            way = self._judge.connect(question, "CONNECT", self._client, begun=begun)
        except (Refused, OSError):
            return False
        far = Incoming(way.sock)
        try:
            if way.proxy is None or opened_tunnel(far, way.proxy, question):
                self._tunnel = Tunnel(near, far)
        finally:
            if self._tunnel is None:
                way.sock.close()
        return False

    def _say_yes(self, question: Question) -> None:
        self._begun = self._judge.begin(question)
        send(self._sock, answers.connected(http_date()))

    def _plain(self, asked: Asked) -> bool:
        (kind, size), closes = asked.framing, asked.closes
        can_drop = kind is NO_BODY or (kind is BY_LENGTH and size <= _DROPPED_BODY_BYTES)
        question = self._refusal(asked, closes=closes or not can_drop)
        if isinstance(question, bytes):
            send(self._sock, question)
            if closes or not can_drop:
                return False
            return self._drop(size)
        kept = self._kept.take(question.key if asked.may_come_twice else None)
        try:
            return self._pass_on(asked, question, kept, closes=closes)
        except Refused as refused:
            answer = answers.blocked(refused.verdict, question, http_date(), closes=closes or not can_drop)
            send(self._sock, answer)
            return not closes and can_drop and self._drop(size)
        except _Unreachable:
            return self._failed(closes=closes or not can_drop) and self._drop(size)
        except UpstreamFailed as failed:
            # Part of the body may have been sent, so nobody knows where the next request begins.
            return failed.can_be_answered and self._failed(closes=closes or kind is not NO_BODY)

    def _pass_on(self, asked: Asked, question: Question, kept: Way | None, *, closes: bool) -> bool:
        """Pass a request on, and again if the server had given the kept connection up.

        Returns whether another request may follow.  Raises Refused, _Unreachable, UpstreamFailed, and OSError
        if the client's connection breaks.
        """
        way = self._way(asked, question, kept)
        try:
            exchange = Exchange(self._incoming, way.sock, asked.request, closes=closes)
            head = asked.onward if way.proxy is None else asked.through(way.proxy.authorization)
            may_follow = exchange.run(head, asked.framing)
            if may_follow and way.proxy is None and asked.may_come_twice and exchange.leaves_open:
                self._kept.keep(question.key, way)
            return may_follow
        except UpstreamFailed:
            if way is not kept or not exchange.heard_nothing:
                raise
        finally:
            if not self._kept.holds(way):
                way.sock.close()
        return self._pass_on(asked, question, None, closes=closes)

    def _way(self, asked: Asked, question: Question, kept: Way | None) -> Way:
        """Return a connection for a request, and close the kept one if it is another.

        Raises Refused, _Unreachable.
        """
        way = None
        try:
            way = self._judge.connect(question, asked.request.method, self._client, kept=kept)
            return way
        except OSError:
            raise _Unreachable from None
        finally:
            if kept is not None and way is not kept:
                kept.sock.close()

    def _refusal(self, asked: Asked, *, closes: bool) -> bytes | Question:
        """Return the answer to a request that goes nowhere, else where it goes."""
        request, target, question = asked.request, asked.target, asked.question
        if request.all(_UNIX_SOCKET_FIELD):
            question = Question(Protocol.HTTP, "unix-socket", 0)
            self._judge.tell(UNIX_SOCKET, question, request.method, self._client)
            return answers.plain(501, _NO_SOCKETS, http_date(), closes=closes)
        if target is None or question is None:
            return answers.plain(400, asked.refusal, http_date(), closes=closes)
        verdict = self._judge.admit(question, request.method, self._client)
        if not verdict.allows:
            return answers.blocked(verdict, question, http_date(), closes=closes)
        if target.is_tls:
            return answers.plain(502, _UPSTREAM_FAILURE, http_date(), closes=closes)
        return question

    def _failed(self, *, closes: bool) -> bool:
        send(self._sock, answers.plain(502, _UPSTREAM_FAILURE, http_date(), closes=closes))
        return not closes

    def _drop(self, size: int) -> bool:
        """Read over the body of a refused request; return whether it was complete."""
        while size:
            data = self._incoming.read(size)
            if not data:
                return False
            size -= len(data)
        return True
