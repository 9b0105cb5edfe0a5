"""One SOCKS connection of a process to its proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gevent import socket

from execserver.egress.socks import (
    WITHOUT_PASSWORD,
    BadSocks,
    Command,
    Reply,
    SocksRequest,
    failed,
    greeting_length,
    parse_request,
    request_length,
    succeeded,
)
from execserver.services.egress.judging import Judge, Refused, Way
from execserver.services.egress.streams import Incoming, send
from execserver.services.egress.tls_guard import TlsGuard
from execserver.services.egress.tunnel import Tunnel

if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.egress.decisions import Question
    from execserver.eventloop.ends import End

_HANDSHAKE_S = 15.0


class SocksConnection:
    """Serves one client until one of the two ends the connection; the socket is the caller's."""

    def __init__(self, sock: End, client: str, judge: Judge) -> None:
        self._sock = sock
        self._client = client
        self._judge = judge
        self._incoming = Incoming(sock)
        self._begun: End | None = None

    def serve(self) -> Tunnel | None:
        """Hear the client; return how to go on if it may connect: the socket is the tunnel's then.

        Raises OSError if the connection breaks.
        """
        try:
            if self._take(greeting_length):
                send(self._sock, WITHOUT_PASSWORD)
                if data := self._take(request_length):
                    return self._answer(parse_request(data))
        except BadSocks as error:
            send(self._sock, error.answer)
        finally:
            if self._begun is not None:
                self._begun.close()
        return None

    def _take(self, length: Callable[[bytes], int]) -> bytes:
        return self._incoming.take(length, _HANDSHAKE_S, _HANDSHAKE_S)

    def _answer(self, request: SocksRequest) -> Tunnel | None:
        if request.command is Command.CONNECT:
            return self._connect(request.question)
        if request.command is Command.UDP_ASSOCIATE and self._judge.policy.socks_udp:
            self._associate(request)
        else:
            send(self._sock, failed(Reply.COMMAND_NOT_SUPPORTED))
        return None

    def _connect(self, question: Question) -> Tunnel | None:
        by_port = self._judge.policy.refuses_port(question)
        if by_port is not None:
            self._judge.tell(by_port, question, None, self._client)
        if by_port is not None or not self._is_admitted(question):
            send(self._sock, failed(Reply.NOT_ALLOWED))
            return None
        begun, self._begun = self._begun, None
        try:
            way = self._judge.connect(question, None, self._client, begun=begun)
        except Refused:
            send(self._sock, failed(Reply.NOT_ALLOWED))
            return None
        except OSError:
            send(self._sock, failed(Reply.REFUSED))
            return None
        try:
            return self._connected(way, question)
        except BaseException:
            way.sock.close()
            raise

    def _is_admitted(self, question: Question) -> bool:
        def begin() -> None:
            self._begun = self._judge.begin(question)

        return self._judge.admit(question, None, self._client, begin).allows

    def _connected(self, way: Way, question: Question) -> Tunnel | None:
        address, port, *_ = way.sock.getsockname()
        send(self._sock, succeeded(address, port))
        near = TlsGuard(self._incoming, self._judge, question, None, self._client)
        if not near.is_intercepted:
            return Tunnel(near, Incoming(way.sock))
        from execserver.services.egress.interception import Interception

        with way.sock:
            Interception(near, self._judge, question, None, self._client, way).serve()
        return None

    def _associate(self, request: SocksRequest) -> None:
        """Open a port for datagrams, and pass none on: so it was recorded, and nothing is judged by less."""
        if request.is_name:
            send(self._sock, failed(Reply.ADDRESS_NOT_SUPPORTED))
            return
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            # Nobody reads it: the kernel drops what does not fit into the smallest buffer.
            datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            datagrams.bind(("127.0.0.1", 0))
            send(self._sock, succeeded(*datagrams.getsockname()))
            while self._incoming.read():
                pass
