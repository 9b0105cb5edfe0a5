"""What both kinds of proxy connections do with sockets: read heads with a deadline, and carry bytes on.

Bytes are copied at first.  Once much has gone one way without a pause, the kernel moves them from socket to
socket (`splice`), through a pipe that only such a stream has.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable
from contextlib import suppress

import gevent

from execserver.eventloop.deadline import at_most
from execserver.eventloop.ends import READABLE, WRITABLE, End
from execserver.eventloop.turns import give_way

READ_BYTES = 64 * 1024
_PIPE_BYTES = 1024 * 1024
_SPLICED_AFTER = 4  # full reads in a row
_TURN_BYTES = 8 * 1024 * 1024  # then others have their turn
_TURN_READS = 16  # the same for bytes that are copied

# Returns the length of what stands complete at the beginning of some bytes, 0 as long as it does not.
Length = Callable[[bytes], int]


class Incoming:
    """The bytes that come from a socket, which is its owner's.

    Who reads from a socket that always has something waits for nothing: now and then others get their turn.
    """

    __slots__ = ("_reads", "buffer", "sock")

    def __init__(self, sock: End, buffer: bytes = b"") -> None:
        self.sock = sock
        self.buffer = buffer
        self._reads = 0

    def take(self, length: Length, idle_s: float, deadline_s: float) -> bytes:
        """Return what `length` finds complete; empty at the end of the input and when it takes too long.

        The first byte has `idle_s` seconds, all others together `deadline_s`.  Raises what `length` raises,
        and OSError.
        """
        self._take_turns()
        if not self.buffer:
            self.buffer = self._received(idle_s)
        if not self.buffer:
            return b""
        if found := length(self.buffer):
            return self.cut(found)  # as nearly always: no timer is needed
        with at_most(deadline_s):
            while more := self.sock.recv(READ_BYTES):
                self._take_turns()
                self.buffer += more
                if found := length(self.buffer):
                    return self.cut(found)
        return b""

    def _received(self, most_s: float) -> bytes:
        """Return the next bytes, none after some seconds."""
        if type(self.sock) is not End:  # what speaks TLS looks like one, no more
            found: list[bytes] = []
            with at_most(most_s):
                found.append(self.sock.recv(READ_BYTES))
            return b"".join(found)
        try:
            return self.sock.recv(READ_BYTES, most_s)
        except TimeoutError:
            return b""

    def cut(self, length: int) -> bytes:
        """Return the first bytes of the buffer, which are no longer in it."""
        found, self.buffer = self.buffer[:length], self.buffer[length:]
        return found

    def read(self, most: int = READ_BYTES) -> bytes:
        """Return at most so many bytes, at least one; none at the end of the input."""
        self._take_turns()
        if self.buffer:
            return self.cut(most)
        return self.sock.recv(most)

    def read_now(self) -> bytes | None:
        """Return what is there, nothing at the end of the input; None if that cannot be said without waiting.

        Raises BlockingIOError if nothing is there.
        """
        data = self.buffer or self.sock.recv_now(READ_BYTES)
        self.buffer = b""
        return data

    def _take_turns(self) -> None:
        self._reads += 1
        if self._reads % _TURN_READS == 0:
            give_way()


def send(sock: End, data: bytes) -> None:
    """Send all of some bytes that nearly always fit; raises OSError."""
    sent = sock.send(data)
    if sent < len(data):
        sock.sendall(data[sent:])


def carry(up: Direction, down: Direction, silence_s: float) -> None:
    """Carry bytes both ways, with a greenlet for each direction, which may wait.

    Ends when both have ended, one is broken, or the one that is left was silent for `silence_s` seconds.
    """
    other = gevent.Greenlet.spawn(_run_beside, down, up, silence_s)
    try:
        up.run()
        while not (down.ended or up.broken):
            before = down.moved
            other.join(silence_s)
            if down.moved == before:
                return
    finally:
        other.kill()


def _run_beside(own: Direction, other: Direction, silence_s: float) -> None:
    """Run one direction, and end the other one where it cannot go on or is silent for too long."""
    own.run()
    while not (own.broken or other.ended):
        before = other.moved
        gevent.sleep(silence_s)
        if other.moved == before:
            break
    if not other.ended:
        other.interrupt()


class Direction:
    """One direction of a tunnel: `moved` bytes so far, which come from `sock`.

    A broken one has ended, too.
    """

    __slots__ = ("_full", "_sink", "_source", "broken", "ended", "moved", "sock")

    def __init__(self, source: Incoming, sink: End) -> None:
        self.sock = source.sock
        self._source = source
        self._sink = sink
        self._full = 0  # reads without a pause
        self.broken = self.ended = False
        self.moved = 0

    @property
    def has_begun(self) -> bool:
        """True if bytes were read that are still to be passed on."""
        return bool(self._source.buffer)

    def interrupt(self) -> None:
        """Have the other end of the source, and who reads from it, see an end."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def step(self, *, is_last: bool) -> bool:
        """Pass on what is there, or the end, without waiting; return whether what follows may go so, too.

        An end that `is_last` shows when the socket is closed.
        """
        try:
            data = self._source.read_now()
        except BlockingIOError:
            return True
        except OSError:
            return self._break()
        if data is None:
            return False
        try:
            if not data:
                if not is_last:
                    self._sink.shutdown(socket.SHUT_WR)
                self.ended = True
                return True
            sent = self._sink.send_now(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return self._break()
        size = len(data)
        if sent < size:
            self._source.buffer = data[sent:]
        self._count(size, sent)
        return sent == size and self._full < _SPLICED_AFTER

    def run(self) -> None:
        """Carry until the end of the input, and pass that on."""
        if self.ended:
            return
        try:
            self._copy()
            self._sink.shutdown(socket.SHUT_WR)
        except OSError:
            self.broken = True
        self.ended = True

    def _break(self) -> bool:
        self.broken = self.ended = True
        return True

    def _count(self, read: int, sent: int) -> None:
        self.moved += sent
        self._full = self._full + 1 if read == READ_BYTES else 0

    def _copy(self) -> None:
        while True:
            while self._source.buffer or self._full < _SPLICED_AFTER:
                data = self._source.read()
                if not data:
                    return
                self._sink.sendall(data)
                self._count(len(data), len(data))
            try:
                pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError:
                self._full = 0  # no descriptors are left: copied on, until it is tried again
            else:
                self._splice(*pipe)
                return

    def _splice(self, out: int, into: int) -> None:
        """Have the kernel move the rest, through a pipe that is closed then."""
        try:
            try:
                fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            except OSError:
                pass  # the user has many large pipes: this one stays small
            turn = 0
            while moved := self._through(self.sock, into, reads=True):
                while moved:
                    sent = self._through(out, self._sink, reads=False, most=moved)
                    moved -= sent
                    self.moved += sent
                    turn += sent
                if turn >= _TURN_BYTES:
                    turn = 0
                    give_way()
        finally:
            os.close(out)
            os.close(into)

    def _through(self, source: End | int, sink: End | int, *, reads: bool, most: int = _PIPE_BYTES) -> int:
        """Move some bytes, waiting for the socket of the two; return how many, 0 at the end."""
        sock = source if reads else sink
        assert isinstance(sock, End)
        from_fd = source if isinstance(source, int) else source.fileno()
        to_fd = sink if isinstance(sink, int) else sink.fileno()
        while True:
            try:
                return os.splice(from_fd, to_fd, most, flags=os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK)
            except BlockingIOError:
                sock.wait(READABLE if reads else WRITABLE)
