"""One request and its response over one connection.

`response_parser` refuses what is no HTTP/1.1.  It does no I/O, so waiting, limits and cooperative yielding
stay here; and it is loaded after the first request has been sent, while the server thinks.  A body is read as
it comes: `read` waits for something, joins what else has arrived already, and returns it; nothing is read
ahead of the caller.

Against a hostile server, the head, every line of the framing and the number of interim responses are bounded,
and after some hundred framing events other greenlets get their turn.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

import gevent
from gevent import socket

if TYPE_CHECKING:
    from execserver.http_client.response_parser import ResponseParser

HEAD_BYTES = 64 * 1024  # of a response head; h11 needs 40 ms for the worst one of this size
READ_BYTES = 64 * 1024  # from the network at once; larger reads leave the cache and are slower
JOINED_BYTES = 512 * 1024  # of body are returned together; the reference's client holds 256 pieces only
MAX_INTERIM_RESPONSES = 100
_TURN_EVENTS = 256
_INLINE_SEND_BYTES = 64 * 1024
_TWO_LENGTHS = {b"content-length", b"transfer-encoding"}


class BrokenResponse(Exception):
    """The server broke the protocol or the connection."""


class Framing(Enum):
    """What a parser says where there is neither a head nor a piece of a body."""

    NEED_DATA = auto()
    ENDED = auto()


class ResponseHead(NamedTuple):
    """Status and header lines of a response, names in lower case."""

    status: int
    lines: list[tuple[bytes, bytes]]

    def first(self, name: bytes) -> bytes | None:
        """Return the first value of a name."""
        return next((value for each, value in self.lines if each == name), None)


class Exchange:
    """One connection during its only request; owns the socket.

    `would_block` lists the errors that the socket raises where it would have to wait.
    """

    def __init__(
        self,
        sock: socket.socket,
        method: str,
        would_block: tuple[type[OSError], ...] = (BlockingIOError,),
    ) -> None:
        self._sock = sock
        self._would_block = would_block
        self._sender: gevent.Greenlet[..., None] | None = None
        self._method = method
        self._made_parser: ResponseParser | None = None
        self._events = 0
        self._ended = False
        self._is_ambiguous = False
        self._failure = ""  # the text of an error; the error itself would hold this exchange by its traceback

    @property
    def _parser(self) -> ResponseParser:
        if self._made_parser is None:
            self.make_ready()
        assert self._made_parser is not None
        return self._made_parser

    def make_ready(self) -> None:
        """Do what can be done before the response; else it is done when the request has been sent."""
        from execserver.http_client.response_parser import ResponseParser  # late: see above

        self._made_parser = ResponseParser(self._method)

    def send(self, request: bytes) -> None:
        """Send the request; a large one in a greenlet of its own, as a server may answer while it reads."""
        if len(request) <= _INLINE_SEND_BYTES:
            self._send_all(request)
        else:
            self._sender = gevent.spawn(self._send_all, request)

    def receive_head(self) -> ResponseHead:
        """Wait for the head of the final response.  Raises BrokenResponse."""
        for _ in range(MAX_INTERIM_RESPONSES + 1):
            event = self._next_event()
            while event is Framing.NEED_DATA:
                self._receive(wait=True)
                event = self._next_event()
            if isinstance(event, ResponseHead):
                if event.status >= 200 or event.status == 101:
                    # With both, a proxy on the way may see another end of the body, and the next response
                    # elsewhere.  The length is ignored, as by the reference, and the connection not reused.
                    self._is_ambiguous = {name for name, _ in event.lines} >= _TWO_LENGTHS
                    return event
            else:
                raise BrokenResponse("the connection was closed before the response")
        raise BrokenResponse("too many interim responses")

    def read(self) -> bytes:
        """Wait for some of the body and return it, empty at its end.  Raises BrokenResponse.

        What came before an error is returned first.
        """
        if self._failure:
            raise BrokenResponse(self._failure)
        pieces: list[bytes | bytearray] = []
        try:
            self._collect(pieces)
        except BrokenResponse as failure:
            if not pieces:
                raise
            self._failure = str(failure) or "the response broke off"
        return b"".join(pieces)

    def release(self) -> tuple[socket.socket, tuple[type[OSError], ...]] | None:
        """Hand over the socket, and the errors that it raises, for another request.

        Returns None if it cannot be reused: the response was not read to its end, its end is ambiguous, or
        one side wants the connection to end.
        """
        is_sent = self._sender is None or self._sender.ready()
        if self._is_ambiguous or not (self._ended and is_sent and self._parser.is_reusable):
            return None
        return self._sock, self._would_block

    def close(self) -> None:
        """Close the connection.  May be called again."""
        if self._sender is not None:
            self._sender.kill(block=False)
        self._sock.close()

    def _collect(self, pieces: list[bytes | bytearray]) -> None:
        size = 0
        while not self._ended:
            event = self._next_event()
            if isinstance(event, bytes | bytearray):
                pieces.append(event)
                size += len(event)
            elif event is not Framing.NEED_DATA:
                self._ended = True
            elif size >= JOINED_BYTES or not self._receive(wait=not pieces):
                return

    def _send_all(self, request: bytes) -> None:
        try:
            self._sock.sendall(request)
        except OSError:
            pass  # a server may answer and close before it has read everything; reading reports an error

    def _next_event(self) -> ResponseHead | bytes | bytearray | Framing:
        self._events += 1
        if self._events % _TURN_EVENTS == 0:
            gevent.sleep(0)
        return self._parser.next_event()

    def _receive(self, *, wait: bool) -> bool:
        """Give received bytes to the parser; return False if there are none and `wait` is not set."""
        if not wait:
            self._sock.settimeout(0.0)
        try:
            data = self._sock.recv(READ_BYTES)
            self._parser.receive_data(data)
        except self._would_block:
            return False
        except OSError as error:
            raise BrokenResponse(str(error)) from None
        finally:
            if not wait:
                self._sock.settimeout(None)  # at once: the sender may be using the same socket
        return True
