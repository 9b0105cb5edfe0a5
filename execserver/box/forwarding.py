"""TCP connections through a box: from here to what the box reaches, from the box to what is reached here.

Listens on the loopback unless another address is named.  At most 256 connections at a time; further ones
wait in the kernel.  A connection holds at most the server's window each way; what is not read stops its
sender.
Streams go on over a lost connection to the box.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import gevent
from gevent import socket
from gevent.event import AsyncResult
from gevent.hub import get_hub
from gevent.pool import Pool
from gevent.server import StreamServer

from execserver.box import socks
from execserver.box.connecting import Box, asking, patience, told, unreachable
from execserver.box.forwards import Forward, Place
from execserver.box.interrupts import not_ignored
from execserver.box.notices import Notices
from execserver.box.running import open_client
from execserver.box.shown import shown
from execserver.client.errors import ExecServerError, RequestFailed
from execserver.client.recovery import SessionState
from execserver.leaving import failure, reason, write
from execserver.own_process import keep_freed_buffers

if TYPE_CHECKING:
    from execserver.client.client import ExecServerClient
    from execserver.client.ports import PortListener, PortStream

_AT_ONCE: Final = 256
_CONNECT_S: Final = 10.0
_FIRST_BYTES: Final = 16 * 1024
_CHECK_S: Final = 1.0
_BY_SIGNAL: Final = 128
_OF_THE_SYSTEM: Final = "os error"  # in the words of a server


class Forwarder:
    """Owns the listeners and connections between `run` and its return."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._client: ExecServerClient = open_client(box)
        keep_freed_buffers()
        self._notices = Notices(box.name, None, has_escapes=False)
        self._pool = Pool(_AT_ONCE)
        self._servers: list[StreamServer] = []
        self._workers: list[gevent.Greenlet[[], None]] = []
        self._end: AsyncResult[int] = AsyncResult()

    def run(self, here: Sequence[Forward], there: Sequence[Forward], proxies: Sequence[Place]) -> int:
        """Forward until a signal, or until the box is lost; return the exit status.  Raises Leave."""
        watchers = []
        try:
            if self._client.extensions.port_forward is None:
                raise unreachable(f"{shown(self._box.name, 200)}: this server forwards no ports", _CURE)
            for forward in here:
                self._listen(forward.listen, self._opener(forward.target), str(forward.target))
            for proxy in proxies:
                self._listen(proxy, self._serve_proxy, "SOCKS 5")
            for forward in there:
                self._listen_there(forward)
            self._client.watch_connection(self._notices.changed)
            for number in not_ignored((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
                watcher = get_hub().loop.signal(number)
                watcher.start(self._end.set, _BY_SIGNAL + number)
                watchers.append(watcher)
            self._workers.append(gevent.spawn(self._watch))
            return cast(int, self._end.get())
        finally:
            for watcher in watchers:
                watcher.close()
            self._close()

    def _watch(self) -> None:
        while self._client.state is not SessionState.ENDED:
            gevent.sleep(_CHECK_S)
        self._notices.say(f"{shown(self._box.name, 200)} is lost")
        self._end.set(255)

    def _close(self) -> None:
        self._client.watch_connection(lambda is_back: None)
        self._notices.close()
        for server in self._servers:
            server.close()
        gevent.killall(self._workers)
        self._pool.kill()
        self._client.close()

    def _listen(self, at: Place, serve: Callable[[socket.socket], None], leads_to: str) -> None:
        def take(sock: socket.socket, address: object) -> None:
            with sock:
                serve(sock)

        server = StreamServer((at.host, at.port), take, spawn=self._pool)
        server.max_accept = 1  # else each connection costs a look for another one
        try:
            server.start()
        except OSError as error:
            raise failure(f"cannot listen on {at}: {reason(error)}", "choose another port") from None
        self._servers.append(server)
        found = Place(str(server.address[0]), int(server.address[1]))
        write(1, f"{found} -> {leads_to} at {shown(self._box.name, 200)}\n")

    def _opener(self, target: Place) -> Callable[[socket.socket], None]:
        def serve(sock: socket.socket) -> None:
            try:
                with patience():
                    stream = self._client.ports.open(target.host, target.port, first=_come_already(sock))
            except ExecServerError as error:
                self._notices.say(f"{target}: {shown(told(error), 300)}")
                return
            join(sock, stream)

        return serve

    def _serve_proxy(self, sock: socket.socket) -> None:
        try:
            target = socks.wanted(sock)
            try:
                with patience():
                    stream = self._client.ports.open(target.host, target.port)
            except RequestFailed as error:
                socks.answer(sock, socks.REFUSED if _OF_THE_SYSTEM in error.message else socks.NOT_ALLOWED)
                return
            socks.answer(sock, socks.GRANTED)
        except (OSError, ExecServerError, socks.NoRequest):
            return
        join(sock, stream)

    def _listen_there(self, forward: Forward) -> None:
        with asking(self._box):
            try:
                listener = self._client.ports.listen(forward.listen.host, forward.listen.port)
            except RequestFailed as error:
                if _OF_THE_SYSTEM not in error.message:
                    raise
                text = f"{shown(self._box.name, 200)}: cannot listen on {forward.listen}"
                raise failure(f"{text}: {shown(told(error), 300)}", "choose another port") from None
        self._workers.append(gevent.spawn(lambda: self._accept(listener, forward.target)))
        found = Place(listener.address.host, listener.address.port)
        where = shown(f"{found} at {self._box.name}", 300)
        write(1, f"{where} -> {forward.target} here\n")

    def _accept(self, listener: PortListener, target: Place) -> None:
        while (stream := listener.accept()) is not None:
            self._pool.spawn(self._connect, stream, target)

    def _connect(self, stream: PortStream, target: Place) -> None:
        try:
            with socket.create_connection((target.host, target.port), _CONNECT_S) as sock:
                sock.settimeout(None)
                join(sock, stream)
        except OSError as error:
            self._notices.say(f"{target}: {error.strerror or error}")
            stream.close()


def _come_already(sock: socket.socket) -> bytes:
    """Return the first bytes of whoever has connected, if they are there: they go along with the opening."""
    try:
        return os.read(sock.fileno(), _FIRST_BYTES)
    except OSError:
        return b""  # nothing yet, or an error that the next read meets


def join(sock: socket.socket, stream: PortStream) -> None:
    """Pass bytes both ways until both have ended, or one has broken."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    up = gevent.spawn(_send, sock, stream)
    write = partial(_written_at_once, sock.fileno())
    try:
        while data := stream.recv(write):
            sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        up.join()
    except (OSError, ExecServerError):
        pass  # either side is gone: the other one is told by the end
    finally:
        up.kill()
        stream.drop()


def _written_at_once(fd: int, data: bytes) -> int:
    try:
        return os.write(fd, data)
    except OSError:
        return 0  # it is full, or broken, which `sendall` meets again


def _send(sock: socket.socket, stream: PortStream) -> None:
    try:
        stream.send_all(iter(lambda: sock.recv(stream.piece_bytes), b""))
        stream.shutdown()
    except (OSError, ExecServerError):
        stream.close()


_CURE: Final = "use a newer execserver there, or one without `--allow-forward none`"
