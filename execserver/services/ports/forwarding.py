"""Where forwarded connections may lead: names are resolved once, and judged by the addresses that come out.

`--allow-forward` decides: nowhere, to this machine's loopback addresses, or anywhere.  The server's own
listener is refused in any case: a client is connected already, and another connection would be one of the
server's user.
"""

from __future__ import annotations

import errno
import ipaddress
import os
from functools import lru_cache
from typing import Final, NamedTuple

import gevent
from gevent import socket

from execserver.eventloop.ends import End, begun, of_gevent
from execserver.http_client.connect import Address, SocketConnector, connect_to, known_address
from execserver.protocol.errors import InternalError, InvalidRequest, os_error_text
from execserver.protocol.ports import PortAddress
from execserver.settings import Settings

NONE, LOOPBACK, ANY = 0, 1, 2
MAX_PORTS: Final = 2048  # streams and listeners of all sessions
_CONNECT_S = 10.0


class Connected(NamedTuple):
    """A connection, and where it leads."""

    end: End
    address: PortAddress

    @classmethod
    def of(cls, end: End) -> Connected:
        """Return a connection with its address.  Raises OSError while, or once, it leads nowhere."""
        host, port, *_ = end.getpeername()
        return cls(end, PortAddress(host=host, port=port))


class Forwarding:
    """What all sessions share: the rule, name look-ups and the number of open ports."""

    def __init__(self, settings: Settings, own_address: tuple[str, int] | None) -> None:
        """`own_address` is that of the server's listener, if it has one."""
        self._reach = settings.forward_reach
        self._connector = SocketConnector()
        self.open_ports = 0
        self.own_address = own_address

    def connect(self, method: str, host: str, port: int) -> Connected:
        """Return a connection to one of the allowed addresses of a host.  Raises RpcError."""
        allowed = self._allowed(method, host, port)
        try:
            with gevent.Timeout(_CONNECT_S, TimeoutError(110, "timed out")):
                end = of_gevent(connect_to(allowed))
            return Connected.of(end)
        except OSError as error:
            raise InternalError(os_error_text(error.errno) if error.errno else str(error)) from None

    def connect_at_once(self, method: str, host: str, port: int) -> Connected | None:
        """Return a connection to one of this machine's loopback addresses, if nothing has to wait for it.

        None for any other host, of which `connect` knows more.  Raises RpcError.
        """
        known = known_address(host, port)
        if known is None or not _is_loopback(known):
            return None
        (address,) = self._judged(method, host, port, [known])
        try:
            return _connected_at_once(address)
        except OSError as error:
            raise InternalError(os_error_text(error.errno) if error.errno else str(error)) from None

    def listen(self, method: str, host: str, port: int) -> socket.socket:
        """Return a socket that listens on an allowed address of a host; port 0 takes a free one."""
        family, place = self._allowed(method, host, port)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(place)
            sock.listen(64)
        except OSError as error:
            sock.close()
            raise InternalError(os_error_text(error.errno) if error.errno else str(error)) from None
        return sock

    def _allowed(self, method: str, host: str, port: int) -> list[Address]:
        self._require_forwarding(method)
        try:
            with gevent.Timeout(_CONNECT_S, TimeoutError("the name server does not answer")):
                found = self._connector.addresses(host, port)
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise InternalError(f"cannot resolve {host}: {why}") from None
        return self._judged(method, host, port, found)

    def _require_forwarding(self, method: str) -> None:
        if self._reach == NONE:
            raise InvalidRequest(f"{method}: this server forwards nothing (--allow-forward none)")

    def _judged(self, method: str, host: str, port: int, found: list[Address]) -> list[Address]:
        """Return the addresses that a client may have a connection to.  Raises InvalidRequest for none."""
        self._require_forwarding(method)
        allowed = found if self._reach == ANY else [one for one in found if _is_loopback(one)]
        if not allowed:
            only = "loopback addresses only (--allow-forward loopback)"
            raise InvalidRequest(f"{method}: this server forwards to {only}")
        if port and any(self._is_own(one) for one in allowed):
            raise InvalidRequest(f"{method}: {host}:{port} is this server's own")
        return allowed

    def _is_own(self, address: Address) -> bool:
        """Return whether an address could be that of the server's listener."""
        if self.own_address is None or address[1][1] != self.own_address[1]:
            return False
        ip, own = _ip(address[1][0]), _ip(self.own_address[0])
        return ip == own or ip.is_unspecified or ip.is_loopback or _is_of_this_machine(address)


def _connected_at_once(address: Address) -> Connected | None:
    """Return a connection; None where one would have to wait, as hardly ever on loopback.  Raises OSError."""
    end = begun(*address)
    try:
        try:
            return Connected.of(end)
        except OSError:
            result = end.connect_ex(address[1])  # it is not connected, and the kernel tells why
        if result not in (0, errno.EISCONN, errno.EINPROGRESS, errno.EALREADY):
            raise OSError(result, os.strerror(result))
    except BaseException:
        end.close()
        raise
    end.close()
    return None


@lru_cache(maxsize=256)  # of at most some 50 characters each: nothing longer is an address
def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    ip = ipaddress.ip_address(host.partition("%")[0])
    return getattr(ip, "ipv4_mapped", None) or ip


def _is_loopback(address: Address) -> bool:
    return _ip(address[1][0]).is_loopback


def _is_of_this_machine(address: Address) -> bool:
    family, place = address
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((place[0], 0, *place[2:]))
        except OSError:
            return False
    return True
