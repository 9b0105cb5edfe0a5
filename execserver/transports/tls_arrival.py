"""Connections with TLS: the handshake, and then a bridge to a plain socket that the transport reads.

OpenSSL works on buffers in memory here, so it never waits; each connection has greenlets of its own, and a
slow handshake delays nobody.  Behind the bridge everything is as without TLS, which costs a plain connection
nothing.  What is buffered is bounded: one read in each direction, and the kernel's buffers.
"""

from __future__ import annotations

import logging
import socket
import ssl
from typing import Any

from gevent import joinall, killall, spawn
from gevent.lock import BoundedSemaphore
from gevent.socket import wait_read, wait_write

from execserver.access.tls import TlsError, TlsFiles, identity_of, make_context
from execserver.eventloop.deadline import at_most
from execserver.eventloop.liveness import LivenessSweep
from execserver.settings import Settings
from execserver.transports.arrival import Arrived, NotWelcome, address_text

_log = logging.getLogger(__name__)

_READ_BYTES = 64 * 1024


class TlsArrival:
    """TCP with TLS; an `Arrival`."""

    may_wait = True

    def __init__(self, files: TlsFiles, settings: Settings) -> None:
        """Read the certificate.  Raises TlsError."""
        self._files = files
        self._context = make_context(files)
        self._settings = settings
        self._liveness = LivenessSweep(settings.tcp_user_timeout_s)

    def reload(self) -> None:
        """Read the files again, for new connections; what cannot be used leaves everything as it was."""
        try:
            self._context = make_context(self._files)
        except TlsError as error:
            _log.error("going on with the certificate that was there before: %s", error)
            return
        _log.info("the certificate was read again")

    def receive(self, sock: socket.socket, address: Any) -> Arrived:
        """See `Arrival`."""
        bridge = TlsBridge(sock, self._context, self._settings.close_timeout_s, self._liveness)
        done = False
        try:
            with at_most(self._settings.upgrade_timeout_s):
                bridge.handshake()
                done = True
        finally:
            if not done:
                self._liveness.forget(bridge)  # the caller closes the socket
        if not done:
            raise NotWelcome(f"the TLS handshake of {address_text(address)} took too long")
        identity = identity_of(bridge.certificate)
        return Arrived(bridge.open(), address_text(address), identity, False)


class TlsBridge:
    """TLS on one side, a plain socket on the other; owns both once it is open."""

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, patience_s: float, liveness: LivenessSweep
    ) -> None:
        self.sock = sock
        self._patience_s = patience_s
        self._liveness = liveness
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=True)
        self._sending = BoundedSemaphore(1)  # what is encrypted first must leave first
        self._plain: socket.socket | None = None

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The verified certificate of the peer, if one was asked for."""
        return self._tls.getpeercert()

    def handshake(self) -> None:
        """Do the handshake; raise OSError, of which ssl.SSLError is a kind."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._send_pending()
                data = _receive(self.sock)
                if not data:
                    raise ConnectionResetError("the peer left during the TLS handshake") from None
                self._received.write(data)
            except ssl.SSLError:
                self._send_pending()  # the alert that tells the peer why
                raise
            else:
                self._send_pending()
                return

    def open(self) -> socket.socket:
        """Start to carry bytes; return the end of the plain side, which the caller closes."""
        near, self._plain = socket.socketpair()
        near.setblocking(False)
        self._plain.setblocking(False)
        spawn(self._carry, self._plain)
        return near

    def give_up(self) -> None:
        """End the connection: its peer is gone.  The greenlets notice, and release everything."""
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already

    def _carry(self, plain: socket.socket) -> None:
        both = [spawn(self._carry_in, plain), spawn(self._carry_out, plain)]
        joinall(both, count=1)
        # The other direction may still carry what is on its way.
        joinall(both, timeout=self._patience_s)
        killall(both)
        self._liveness.forget(self)
        self.sock.close()
        plain.close()

    def _carry_in(self, plain: socket.socket) -> None:
        try:
            while data := self._read():
                _send(plain, data)
        except OSError as error:
            _log.debug("a TLS connection broke: %s", error)
        _end_writing(plain)

    def _carry_out(self, plain: socket.socket) -> None:
        try:
            while data := _receive(plain):
                with self._sending:
                    self._tls.write(data)
                    self._send_encrypted()
            self._say_end()
        except OSError as error:
            _log.debug("a TLS connection broke: %s", error)
        _end_writing(self.sock)

    def _read(self) -> bytes:
        """Return the next bytes of the peer, none at its end."""
        while True:
            try:
                return self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                self._send_pending()
            except ssl.SSLZeroReturnError:
                return b""
            data = _receive(self.sock)
            if not data:
                return b""
            self._received.write(data)

    def _say_end(self) -> None:
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # it waits for the peer's own end, which need not come
        self._send_pending()

    def _send_pending(self) -> None:
        """Send what TLS itself has to say."""
        if self._to_send.pending:
            with self._sending:
                self._send_encrypted()

    def _send_encrypted(self) -> None:
        data = self._to_send.read()
        if data:
            self._liveness.written(self)
            _send(self.sock, data)


def _receive(sock: socket.socket) -> bytes:
    while True:
        try:
            return sock.recv(_READ_BYTES)
        except BlockingIOError:
            wait_read(sock.fileno())


def _send(sock: socket.socket, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view) :]
        except BlockingIOError:
            wait_write(sock.fileno())


def _end_writing(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # it has ended already
