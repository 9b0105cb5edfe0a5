"""The server's side of TLS on a connection of which the first bytes were already read."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from gevent.lock import Semaphore

from execserver.eventloop.turns import give_way
from execserver.services.egress.streams import READ_BYTES, Incoming

_T = TypeVar("_T")
_PIECE = 64 * 1024
_TURN_READS = 16


class ServerTls:
    """Looks like a socket to those who receive and send; the real one is its owner's.

    One greenlet may receive while another one sends: what goes out is sent under a lock.
    """

    def __init__(self, incoming: Incoming, context: ssl.SSLContext) -> None:
        self._sock = incoming.sock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._in.write(incoming.cut(len(incoming.buffer)))
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._sending = Semaphore(1)
        self._received = 0
        self._broken: ssl.SSLError | None = None  # what the next call raises

    def handshake(self) -> None:
        """Agree with the client.  Raises OSError, of which ssl.SSLError is a kind."""
        self._done(self._tls.do_handshake)

    def recv(self, most: int) -> bytes:
        """Return bytes, none at the end.  Raises OSError.

        What has come is returned together: whoever sends records of one byte gets no reader to come here for
        each of them.
        """
        if self._broken is not None:
            raise self._broken
        most = min(most, READ_BYTES)
        try:
            found = self._done(lambda: self._tls.read(most))
        except ssl.SSLZeroReturnError:
            return b""
        return found + self._rest(most - len(found))

    def _rest(self, most: int) -> bytes:
        pieces = []
        try:
            while most > 0 and (piece := self._tls.read(most)):
                pieces.append(piece)
                most -= len(piece)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass  # an end shows again at the next call
        except ssl.SSLError as error:
            self._broken = error
        self._flush()
        return b"".join(pieces)

    def sendall(self, data: bytes) -> None:
        """Send everything.  Raises OSError."""
        view = memoryview(data)
        with self._sending:
            for at in range(0, len(view), _PIECE):
                self._tls.write(view[at : at + _PIECE])
                self._send_out()

    def end(self) -> None:
        """Tell the client that nothing follows."""
        with suppress(OSError), self._sending:
            with suppress(ssl.SSLError):
                self._tls.unwrap()  # it would wait for the client's own end, which nobody needs
            self._send_out()

    def _done(self, step: Callable[[], _T]) -> _T:
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._flush()
                self._receive()
                continue
            except ssl.SSLError:
                with suppress(OSError):
                    self._flush()  # the alert that says why
                raise
            self._flush()
            return result

    def _receive(self) -> None:
        self._received += 1
        if self._received % _TURN_READS == 0:
            give_way()  # records that hold nothing for the reader may come without end
        data = self._sock.recv(READ_BYTES)
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()

    def _flush(self) -> None:
        if self._out.pending:
            with self._sending:
                self._send_out()

    def _send_out(self) -> None:
        while data := self._out.read():
            self._sock.sendall(data)
