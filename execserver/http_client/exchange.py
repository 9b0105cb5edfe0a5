"""One request and its response over one connection.

A plain response that arrives at once is read by `whole_response`, every other one by `response_parser`, which
refuses what is no HTTP/1.1.  They do no I/O, so waiting, limits and cooperative yielding stay here.  A body
is read as it comes: `read` waits for something, joins what else has arrived already, and returns it; nothing
is read ahead of the caller.

Against a hostile server, the head, every line of the framing and the number of interim responses are bounded,
and after some hundred framing events other greenlets get their turn.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent
from gevent import socket
from gevent.hub import get_hub

from execserver.http_client.response_events import (
    BrokenResponse,
    Framing,
    ResponseEvent,
    ResponseHead,
    ResponseReader,
)

# To the network at once.  `sendall` goes on with a MiB at a time, and OpenSSL refuses an attempt that has
# less than the kernel took of the one before.
_SENT_BYTES = 512 * 1024
READ_BYTES = 64 * 1024  # from the network at once; larger reads leave the cache and are slower
JOINED_BYTES = 512 * 1024  # of body are returned together; the reference's client holds 256 pieces only
MAX_INTERIM_RESPONSES = 100
_TURN_EVENTS = 256
_READY_READ = 1
_TWO_LENGTHS = {b"content-length", b"transfer-encoding"}


def load_parser() -> None:
    """Load what any response may need; else it is loaded for one that needs it."""
    import execserver.http_client.response_parser  # noqa: F401  (late: the server thinks meanwhile)


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
        self._watcher: Any = None  # of `when_readable`
        self._reader: ResponseReader | None = None  # made for the first bytes of the response
        self._events = 0
        self._ended = False
        self._is_ambiguous = False
        self._failure = ""  # the text of an error; the error itself would hold this exchange by its traceback

    def send(self, request: bytes) -> None:
        """Send the request without waiting: what the kernel does not take now follows in a greenlet.

        A server may answer while it reads.
        """
        self._sock.settimeout(0.0)
        try:
            sent = self._sock.send(memoryview(request)[:_SENT_BYTES])
        except self._would_block:
            sent = 0
        except OSError:
            return  # as in `_send_all`
        finally:
            self._sock.settimeout(None)
        if sent < len(request):
            self._sender = gevent.spawn(self._send_all, memoryview(request)[sent:])

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
        if self._is_ambiguous or not (self._ended and is_sent and self._reader and self._reader.is_reusable):
            return None
        return self._sock, self._would_block

    def when_readable(self, act: Callable[[], None]) -> None:
        """Have the event loop call `act`, once, when something has arrived or the connection has ended."""

        def readable() -> None:
            self._watcher.stop()
            act()

        self._watcher = get_hub().loop.io(self._sock.fileno(), _READY_READ)
        self._watcher.start(readable)

    def has_whole_response(self) -> bool:
        """Take what has arrived; return whether that is all of a plain response.  Does not wait."""
        with suppress(BrokenResponse):  # whoever waits for the response is told
            self._receive(wait=False)
        return self.is_whole

    @property
    def is_whole(self) -> bool:
        """True once all of the response is here: nothing waits any more."""
        return self._reader is not None and self._reader.is_whole

    def close(self) -> None:
        """Close the connection.  May be called again."""
        if self._sender is not None:
            self._sender.kill(block=False)
        if self._watcher is not None:
            self._watcher.stop()
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

    def _send_all(self, rest: memoryview) -> None:
        try:
            self._sock.sendall(rest)
        except OSError:
            pass  # a server may answer and close before it has read everything; reading reports an error

    def _next_event(self) -> ResponseEvent:
        self._events += 1
        if self._events % _TURN_EVENTS == 0:
            gevent.sleep(0)
        return Framing.NEED_DATA if self._reader is None else self._reader.next_event()

    def _receive(self, *, wait: bool) -> bool:
        """Give received bytes to the reader; return False if there are none and `wait` is not set."""
        if not wait:
            self._sock.settimeout(0.0)
        try:
            data = self._sock.recv(READ_BYTES)
            self._take(data)
        except self._would_block:
            return False
        except OSError as error:
            raise BrokenResponse(str(error)) from None
        finally:
            if not wait:
                self._sock.settimeout(None)  # at once: the sender may be using the same socket
        return True

    def _take(self, data: bytes) -> None:
        if self._reader is None:
            # Late: a registration is sent before the pattern of it is compiled.
            from execserver.http_client.whole_response import whole_response

            self._reader = whole_response(self._method, data)
            if self._reader is not None:
                return
            from execserver.http_client.response_parser import ResponseParser  # late: plain answers need none

            self._reader = ResponseParser(self._method)
        self._reader.receive_data(data)
