"""The proxy bridge: from a confined process's loopback to proxies on the host's loopback (managed network).

A sandbox has a network of its own with nothing but loopback.  Its init makes the listening sockets there and
passes them to a bridge process in the host's network, which accepts on them and connects to the host's
proxies.  A socket belongs to the network that it was made in: so no socket file is needed, and the confined
process reaches nothing but these ports.  The bridge runs only this code, copies bytes, and is killed together
with the process that it serves.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import select
import struct

from execserver.sandbox.kernel import limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.proxy.routes import Endpoint

MAX_CONNECTIONS = 128  # at a time; further ones wait in the listening sockets' queues
_BUFFER_BYTES = 64 * 1024
_BACKLOG = 128
_SHORTAGE_PAUSE_MS = 50  # after a shortage of descriptors
_SIGKILL = 9
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_IFREQ = struct.Struct("16sH22x")


def bring_up_loopback() -> None:
    """Bring up `lo` in the network namespace of this process, which must own it.  Raises OSError."""
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
    try:
        reply = fcntl.ioctl(sock.fileno(), _SIOCGIFFLAGS, _IFREQ.pack(b"lo", 0))
        _, flags = _IFREQ.unpack(reply)
        if not flags & _IFF_UP:
            fcntl.ioctl(sock.fileno(), _SIOCSIFFLAGS, _IFREQ.pack(b"lo", flags | _IFF_UP))
    finally:
        sock.close()


def pass_listeners(channel: int, ports: Sequence[int]) -> list[int]:
    """Listen on loopback ports of this network and pass the sockets on; return the ports.

    A port of 0 stands for any that is free.  `channel` leads to whoever accepts on the sockets; it stays the
    caller's.  Raises OSError.
    """
    listeners: list[_socket.socket] = []
    try:
        for port in ports:
            listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
            listeners.append(listener)
            listener.bind(("127.0.0.1", port))
            listener.listen(_BACKLOG)
        numbers = struct.pack(f"{len(ports)}i", *(listener.fileno() for listener in listeners))
        sock = _socket.socket(fileno=os.dup(channel))
        try:
            # A plain send could fail while a command of this user keeps many descriptors in unread messages.
            limits.send(sock, b"L", [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])
        finally:
            sock.close()
        return [listener.getsockname()[1] for listener in listeners]
    finally:
        for listener in listeners:
            listener.close()


class Bridge:
    """A started bridge: its pid, which the caller reaps, and the socket for the listeners, owned by this."""

    __slots__ = ("channel", "pid")

    def __init__(self, pid: int, channel: int) -> None:
        self.pid = pid
        self.channel = channel

    def close_channel(self) -> None:
        """Close our end of the socket: the listeners were passed, or never will be."""
        if self.channel >= 0:
            os.close(self.channel)
            self.channel = -1

    def kill(self) -> None:
        """End the bridge; the caller reaps it."""
        self.close_channel()
        try:
            os.kill(self.pid, _SIGKILL)
        except OSError:
            return


def start_bridge(
    endpoints: Sequence[Endpoint], confine: Callable[[], None], keep: Sequence[int] = ()
) -> Bridge:
    """Fork a bridge to the endpoints, one listener for each, in their order.  Raises OSError.

    The caller has one thread.  The child first calls `confine`, which ties its life to its parent's.  It
    keeps the descriptors 0, 1, 2 and `keep`.
    """
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        pid = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if pid:
        theirs.close()
        return Bridge(pid, ours.detach())
    try:
        confine()
        _keep_only((0, 1, 2, theirs.fileno(), *keep))
        listeners = _receive_listeners(theirs, len(endpoints))
        theirs.close()
        if listeners:
            _Relay(listeners, endpoints).run()
    finally:
        os._exit(0)


def _keep_only(descriptors: Sequence[int]) -> None:
    previous = -1
    for kept in sorted(set(descriptors)):
        if kept > previous + 1:
            os.closerange(previous + 1, kept)
        previous = kept
    os.closerange(previous + 1, os.sysconf("SC_OPEN_MAX"))


def _receive_listeners(channel: _socket.socket, count: int) -> list[_socket.socket]:
    """Return the listening sockets; none if the other end closed without passing any."""
    _, ancillary, _, _ = channel.recvmsg(1, _socket.CMSG_SPACE(4 * count))
    numbers = b"".join(content for _, kind, content in ancillary if kind == _socket.SCM_RIGHTS)
    return [_socket.socket(fileno=number) for number in struct.unpack(f"{len(numbers) // 4}i", numbers)]


class _Pipe:
    """One direction of a connection; `data` was read on one side and is not written on the other yet."""

    __slots__ = ("closed", "data", "ended", "sink", "source")

    def __init__(self, source: _socket.socket, sink: _socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.data = b""
        self.ended = False
        self.closed = False

    def move(self) -> bool:
        """Copy what can be copied now; return False if the connection is broken."""
        try:
            if not self.data and not self.ended:
                self.data = self.source.recv(_BUFFER_BYTES)
                self.ended = not self.data
            if self.data:
                self.data = self.data[self.sink.send(self.data) :]
            # The end is passed on when all data is written; the other direction goes on.
            if self.ended and not self.data and not self.closed:
                self.closed = True
                self.sink.shutdown(_socket.SHUT_WR)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        return True


class _Connection:
    """Two sockets and the bytes between them; the far socket may still be connecting."""

    __slots__ = ("connected", "far", "near", "pipes")

    def __init__(self, near: _socket.socket, far: _socket.socket) -> None:
        self.near = near
        self.far = far
        self.connected = False
        self.pipes = (_Pipe(near, far), _Pipe(far, near))

    def events(self) -> tuple[int, int]:
        """Return the poll events to wait for on the near and on the far socket."""
        if not self.connected:
            return 0, select.POLLOUT
        up, down = self.pipes
        near = (0 if up.data or up.ended else select.POLLIN) | (select.POLLOUT if down.data else 0)
        far = (0 if down.data or down.ended else select.POLLIN) | (select.POLLOUT if up.data else 0)
        return near, far

    def advance(self) -> bool:
        """Continue after an event; return False when the connection has ended."""
        if not self.connected:
            if self.far.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR):
                return False
            self.connected = True
        return all(pipe.move() for pipe in self.pipes) and not all(pipe.closed for pipe in self.pipes)

    def close(self) -> None:
        """Close both sockets."""
        self.near.close()
        self.far.close()


class _Relay:
    """The bridge's loop: one thread, at most MAX_CONNECTIONS connections."""

    def __init__(self, listeners: Sequence[_socket.socket], endpoints: Sequence[Endpoint]) -> None:
        self._listeners = {
            listener.fileno(): (listener, endpoint)
            for listener, endpoint in zip(listeners, endpoints, strict=False)
        }
        self._connections: dict[int, _Connection] = {}
        for listener in listeners:
            listener.setblocking(False)

    def run(self) -> None:
        """Serve until killed."""
        while True:
            poll = select.poll()
            # Each connection is in the table under both of its descriptors.
            if len(self._connections) < 2 * MAX_CONNECTIONS:
                for number in self._listeners:
                    poll.register(number, select.POLLIN)
            for connection in set(self._connections.values()):
                for sock, events in zip((connection.near, connection.far), connection.events(), strict=True):
                    poll.register(sock.fileno(), events)
            for number, events in poll.poll():
                if number in self._listeners:
                    self._accept(*self._listeners[number])
                # A connection that ended earlier in this turn is not in the table any more.
                elif number in self._connections:
                    self._advance(self._connections[number], bool(events & select.POLLNVAL))

    def _accept(self, listener: _socket.socket, endpoint: Endpoint) -> None:
        try:
            number, _ = listener._accept()  # type: ignore[attr-defined]
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                select.poll().poll(_SHORTAGE_PAUSE_MS)  # the listener stays readable: no busy loop
            return
        near = _socket.socket(fileno=number)
        try:
            near.setblocking(False)
            far = _begin_connect(endpoint)
        except OSError:
            near.close()
            return
        connection = _Connection(near, far)
        self._connections[near.fileno()] = self._connections[far.fileno()] = connection

    def _advance(self, connection: _Connection, broken: bool) -> None:
        if not broken and connection.advance():
            return
        del self._connections[connection.near.fileno()], self._connections[connection.far.fileno()]
        connection.close()


def _begin_connect(endpoint: Endpoint) -> _socket.socket:
    """Begin to connect without waiting; with port 0 the address is the path of a Unix socket."""
    address, port = endpoint
    if not port:
        family, target = _socket.AF_UNIX, address
    else:
        family = _socket.AF_INET6 if b":" in address else _socket.AF_INET
        target = (address.decode(), port)  # type: ignore[assignment]
    sock = _socket.socket(family, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC | _socket.SOCK_NONBLOCK)
    try:
        sock.setblocking(False)
        sock.connect(target)
    except BlockingIOError:
        pass
    except OSError:
        sock.close()
        raise
    return sock
