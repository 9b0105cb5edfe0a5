"""The proxy of one process: its listening sockets and the connections to them.

It serves in the event loop of the server, from `start` to `close`.  Limits: `MAX_CONNECTIONS` of one process,
and those of all proxies together (`places`); further connections wait in the kernel's queue until one has
ended.  A connection of somebody else is closed unheard (`peers`).
"""

from __future__ import annotations

import logging
import socket
from functools import partial
from typing import TYPE_CHECKING

from execserver.egress.environment import proxy_environment
from execserver.eventloop.acceptor import Acceptor
from execserver.eventloop.ends import End, accepted
from execserver.services.egress.http import HttpConnection
from execserver.services.egress.judging import Ask, Judge, Tell
from execserver.services.egress.socks import SocksConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.egress.policy import EgressPolicy
    from execserver.eventloop.workers import Work, Workers
    from execserver.handover.carrier import Incoming, Outgoing
    from execserver.handover.records import PackedNetwork
    from execserver.services.egress.masked import Masked
    from execserver.services.egress.service import EgressService
    from execserver.services.egress.tunnel import Tunnel

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 1024
_BACKLOG = 1024
_LOOPBACK = "127.0.0.1"

Serve = type[HttpConnection] | type[SocksConnection]


class EgressProxy:
    """The proxy of one process; owns all its sockets.  `leader` is the pid of the process once it runs.

    Before `start` either `listen` gives it ports on the host's loopback, or `expect` says on which ports the
    sockets will listen that `listen_on` then brings, from the network of a sandbox.
    """

    def __init__(self, policy: EgressPolicy, service: EgressService, tell: Tell, ask: Ask | None) -> None:
        self.leader = 0
        self.launch = b""  # the settings as JSON, for another server that takes over
        self.http_port = 0
        self.socks_port: int | None = None
        self._service = service
        self._policy = policy
        self._judge = Judge(policy, service, tell, ask)
        self._connections: set[_Connection] = set()
        self._acceptors: list[Acceptor] = []
        self._is_on_host = False
        self._has_strangers = False
        self._is_accepting = False

    @property
    def environment(self) -> dict[bytes, bytes]:
        """The variables that lead a process here."""
        local = self._policy.allow_local_binding
        variables = proxy_environment(self.http_port, self.socks_port, local_binding=local)
        return variables if self.masked is None else variables | self.masked.environment

    @property
    def masked(self) -> Masked | None:
        """The credentials of the process, where they are masked; closed with the proxy."""
        return self._judge.masked

    @masked.setter
    def masked(self, masked: Masked | None) -> None:
        """Have connections from now on use these; the proxy closes them."""
        self._judge.masked = masked

    def listen(self) -> None:
        """Listen on free ports of the host's loopback.  Raises OSError."""
        http = _listener()
        try:
            socks = _listener() if self._policy.socks else None
        except OSError:
            http.close()
            raise
        self._is_on_host = True
        self.expect(http.getsockname()[1], None if socks is None else socks.getsockname()[1])
        self.listen_on(http, socks)

    def expect(self, http_port: int, socks_port: int | None) -> None:
        """Note the ports for `environment`; the one for SOCKS counts if the policy has it."""
        self.http_port = http_port
        self.socks_port = socks_port if self._policy.socks else None

    def listen_on(self, http: socket.socket, socks: socket.socket | None) -> None:
        """Take listening, non-blocking sockets; whoever can reach them is the process."""
        for sock in (http, socks):
            if sock is not None:  # what it accepts inherits that
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._acceptors.append(self._acceptor(http, HttpConnection, self.http_port))
        if socks is not None and self.socks_port is not None:
            self._acceptors.append(self._acceptor(socks, SocksConnection, self.socks_port))

    def pack(self, out: Outgoing) -> PackedNetwork | None:
        """Return what `take_over` takes; None once it is closed."""
        from execserver.handover.records import PackedNetwork

        if not self._acceptors:
            return None
        sockets = [out.keep(acceptor.fd) for acceptor in self._acceptors]
        masked = b"" if self.masked is None else self.masked.pack(out)
        ports = self.http_port, self.socks_port
        return PackedNetwork(self.launch, self._is_on_host, *ports, sockets, masked)

    def take_over(self, packed: PackedNetwork, incoming: Incoming) -> None:
        """Go on with the sockets of a server before this one; called before `start`."""
        self._is_on_host = packed.is_on_host
        self.expect(packed.http_port, packed.socks_port)
        http, *socks = [_listening(incoming.take(fd)) for fd in packed.sockets]
        self.listen_on(http, socks[0] if socks else None)

    def start(self) -> None:
        """Begin to serve."""
        if self._is_on_host:
            self._service.own_ports.add(*self._ports)
        self._service.places.add(self)
        self.settle()

    def close(self) -> None:
        """End all connections and listen no longer.  Never blocks; a second call does nothing."""
        acceptors, self._acceptors = self._acceptors, []
        for acceptor in acceptors:
            acceptor.close()
        if self._is_on_host and acceptors:  # later the ports may be another's
            self._service.own_ports.remove(*self._ports)
        self._service.places.discard(self)
        for connection in list(self._connections):
            connection.end()
        if self.masked is not None:
            self.masked.close()

    def settle(self) -> None:
        """Accept, unless this process or all of them have too many connections: further ones wait then."""
        self._is_accepting = self._may_accept
        for acceptor in self._acceptors:
            if self._is_accepting:
                acceptor.start()
            else:
                acceptor.pause()

    @property
    def _may_accept(self) -> bool:
        count = len(self._connections)
        return count < MAX_CONNECTIONS and self._service.places.are_free_for(count)

    @property
    def _ports(self) -> tuple[int, ...]:
        return (self.http_port,) if self.socks_port is None else (self.http_port, self.socks_port)

    def _acceptor(self, sock: socket.socket, kind: Serve, port: int) -> Acceptor:
        def taken(near: End, address: tuple[str, int]) -> None:
            self._accepted(near, address, kind, port)

        return Acceptor(sock, taken, lambda: None, _log, partial(accepted, sock))

    def _accepted(self, near: End, address: tuple[str, int], kind: Serve, port: int) -> None:
        if self._is_on_host and not self._service.peers.may_use(address, port, self.leader):
            # Once: whoever else is on the machine could fill the log.
            level = logging.DEBUG if self._has_strangers else logging.WARNING
            self._has_strangers = True
            _log.log(level, "a connection to the proxy of process %d was not its own", self.leader)
            near.close()
            return
        connection = _Connection(near, self._service.workers, self._ended)
        self._connections.add(connection)
        self._service.places.take()
        connection.start(kind(near, f"{address[0]}:{address[1]}", self._judge))
        if not self._may_accept:
            self.settle()

    def _ended(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self._service.places.give_back()
        if not self._is_accepting:
            self.settle()


class _Connection:
    """A connection to the proxy: a worker serves it, until it ends or is a tunnel."""

    __slots__ = ("_ended", "_is_ending", "_near", "_tunnel", "_work", "_workers")

    def __init__(self, near: End, workers: Workers, ended: Callable[[_Connection], None]) -> None:
        """`ended` is called once, when all is closed."""
        self._near = near
        self._workers = workers
        self._ended = ended
        self._is_ending = False
        self._tunnel: Tunnel | None = None
        self._work: Work

    def start(self, served: HttpConnection | SocksConnection) -> None:
        """Begin to serve, which may be over at once."""
        self._work = self._workers.start(partial(self._serve, served))

    def end(self) -> None:
        """End it soon."""
        self._is_ending = True
        self._work.kill()
        if self._tunnel is not None:
            self._tunnel.close()

    def _serve(self, served: HttpConnection | SocksConnection) -> None:
        try:
            self._tunnel = served.serve()
        except OSError as error:
            _log.debug("a connection to a proxy broke: %s", error)
        finally:
            if self._tunnel is None:
                self._near.close()
                self._ended(self)
        if self._tunnel is not None:
            self._tunnel.start(self._workers, partial(self._ended, self))
            if self._is_ending:
                self._tunnel.close()


def _listening(fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    return sock


def _listener() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.bind((_LOOPBACK, 0))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
