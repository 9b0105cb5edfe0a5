"""Connections to servers and proxies: names resolved, addresses tried in parallel.

A name is looked up in a small thread pool of this module's own, so that a name server that does not answer
delays other look-ups at most.  Of several addresses the first that answers wins; the next one is tried when
one has failed or was silent for a quarter of a second.
"""

from __future__ import annotations

import _socket
import errno
import os
from collections.abc import Callable
from itertools import zip_longest
from typing import TYPE_CHECKING

import gevent
from gevent import socket
from gevent.queue import Empty, SimpleQueue

if TYPE_CHECKING:
    from gevent.threadpool import ThreadPool

LOOKUP_THREADS = 4
LOOKUP_IDLE_S = 30  # then a thread without work ends
MAX_ADDRESSES = 8  # of one name; more are not tried
HEAD_START_S = 0.25  # RFC 8305 recommends it
# Long silence is normal on an event stream; a peer that is gone is noticed within two minutes.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))

Place = tuple[str, int] | tuple[str, int, int, int]  # numeric host, port and the rest
Address = tuple[int, Place]  # family and place


class SocketConnector:
    """Opens TCP connections; its look-up threads start with the first name and end when idle."""

    def __init__(self, look_ups: int = LOOKUP_THREADS) -> None:
        self._look_ups = look_ups  # at a time
        self._pool: ThreadPool | None = None

    def connect(self, host: str, port: int) -> socket.socket:
        """Return a connected socket, which the caller owns.  Raises OSError."""
        return connect_to(self.addresses(host, port))

    def addresses(self, host: str, port: int) -> list[Address]:
        """Return the addresses of a host, best first.  Raises OSError, and UnicodeError for no name."""
        if (known := known_address(host, port)) is not None:
            return [known]
        if self._pool is None:
            from gevent.threadpool import ThreadPool  # late: an address needs none

            self._pool = ThreadPool(self._look_ups, idle_task_timeout=LOOKUP_IDLE_S)
        found = self._pool.apply(_look_up, (host, port))
        if isinstance(found, OSError):
            raise found
        return found


def known_address(host: str, port: int) -> Address | None:
    """Return the address of a host that is one; None for a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            _socket.inet_pton(family, host)
        except OSError:
            continue
        return family, (host, port)
    return None


def connect_to(addresses: list[Address]) -> socket.socket:
    """Return a socket connected to the first of some addresses that answers.  Raises OSError."""
    return _connect(addresses[0]) if len(addresses) == 1 else _first_to_answer(addresses)


def _look_up(host: str, port: int) -> list[Address] | OSError:
    """Resolve a name, in a thread; address families alternate, the system's first choice first.

    An error is returned, not raised: gevent prints what a thread raises.
    """
    try:
        # Bytes, since a `str` would pass the standard library's IDNA, which refuses names that DNS allows.
        found = _socket.getaddrinfo(host.encode("ascii"), port, 0, socket.SOCK_STREAM)
    except OSError as error:
        return error
    addresses: list[Address] = [(entry[0], entry[4]) for entry in found if not isinstance(entry[4][1], bytes)]
    first = [each for each in addresses if each[0] == addresses[0][0]]
    others = [each for each in addresses if each[0] != addresses[0][0]]
    paired = [each for pair in zip_longest(first, others) for each in pair if each is not None]
    return paired[:MAX_ADDRESSES]


def _connect(address: Address) -> socket.socket:
    family, place = address
    sock = _prepared(family)
    try:
        if not _is_connected(sock, place):
            sock.connect(place)
    except BaseException:
        sock.close()
        raise
    return sock


def _prepared(family: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    except BaseException:
        sock.close()
        raise
    return sock


def _is_connected(sock: socket.socket, place: Place) -> bool:
    """Begin to connect; return whether that is all, as on loopback, where no event has to be waited for.

    Raises OSError.
    """
    sock.settimeout(0.0)
    result = sock.connect_ex(place)
    if result == errno.EINPROGRESS:
        result = sock.connect_ex(place)
    sock.settimeout(None)
    if result in (errno.EINPROGRESS, errno.EALREADY):
        return False
    if result not in (0, errno.EISCONN):
        raise OSError(result, os.strerror(result))
    return True


def _first_to_answer(addresses: list[Address]) -> socket.socket:
    """Try addresses with a head start each; attempts still running when one has won are abandoned."""
    outcomes: SimpleQueue[socket.socket | OSError] = SimpleQueue()
    attempts: list[gevent.Greenlet[..., None]] = []
    failure: OSError | None = None
    failures = 0
    try:
        while failures < len(addresses):
            if len(attempts) < len(addresses):
                attempts.append(gevent.spawn(_attempt, addresses[len(attempts)], outcomes.put))
            try:
                outcome = outcomes.get(timeout=HEAD_START_S if len(attempts) < len(addresses) else None)
            except Empty:
                continue
            if isinstance(outcome, OSError):
                failure = failure or outcome
                failures += 1
            else:
                return outcome
        raise failure or OSError("the name has no address")
    finally:
        # A killed attempt closes its socket; one that had just connected is in the queue.
        gevent.killall(attempts)
        while not outcomes.empty():
            late = outcomes.get()
            if not isinstance(late, OSError):
                late.close()


def _attempt(address: Address, report: Callable[[socket.socket | OSError], None]) -> None:
    try:
        report(_connect(address))
    except OSError as error:
        report(error)
