"""TCP, proxies and TLS below a websocket, with the means of `http/request`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gevent import socket
from websockets.uri import WebSocketURI

from execserver.remote.http import registry_environment
from execserver.services.http.connect import Dialler
from execserver.services.http.exchange import BrokenResponse
from execserver.services.http.fetch import open_tunnel
from execserver.services.http.proxy import Proxies, UnsupportedProxy
from execserver.services.http.url import BadUrl, Url, parse

if TYPE_CHECKING:
    from execserver.services.http.tls import Tls

_UNSENT_BYTES = 64 * 1024  # more in the kernel would only lengthen the queue a keystroke's echo has to pass
_UNACKNOWLEDGED_MS = 60_000


class DiallingFailed(Exception):
    """There is no connection, for another reason than the network's own; the text says which."""


class Dialling:
    """Makes the connections; keeps what is costly to make."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = registry_environment(environ)
        self._proxies = Proxies(websocket_proxies(self._environ))
        self._dialler = Dialler()
        self._tls: Tls | None = None

    def connect(self, uri: WebSocketURI) -> socket.socket:
        """Return a socket on which the upgrade can be sent; raise OSError or DiallingFailed.

        Every proxy is asked for a tunnel, also for ws://.
        """
        url = _as_http(uri)
        tls = self._ready_tls() if uri.secure else None
        try:
            proxy = self._proxies.proxy_for(url)
        except UnsupportedProxy as error:
            raise DiallingFailed(str(error)) from None
        sock = self._dialler.connect(*(url.address if proxy is None else (proxy.host, proxy.port)))
        try:
            _tune(sock)
            if proxy is not None:
                open_tunnel(sock, url, proxy)
        except BrokenResponse as broken:
            raise DiallingFailed(str(broken)) from None
        except BaseException:
            sock.close()
            raise
        return sock if tls is None else tls.wrap(sock, url.address[0])

    def _ready_tls(self) -> Tls:
        from execserver.services.http.tls import NoTrust, Tls  # late: not all need it

        if self._tls is None:
            try:
                self._tls = Tls(self._environ)
            except NoTrust as error:
                raise DiallingFailed(str(error)) from None
        return self._tls


def websocket_proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the choice websockets have: wss takes HTTPS_PROXY, then HTTP_PROXY."""
    found = dict(environ)
    given = [found.get(name, found.get(name.lower(), "")) for name in ("HTTPS_PROXY", "HTTP_PROXY")]
    found["HTTPS_PROXY"] = given[0] or given[1]
    return found


def _as_http(uri: WebSocketURI) -> Url:
    host = f"[{uri.host}]" if ":" in uri.host else uri.host
    try:
        return parse(f"{'https' if uri.secure else 'http'}://{host}:{uri.port}/")
    except BadUrl as error:
        raise DiallingFailed(f"the address is not usable: {error}") from None


def _tune(sock: socket.socket) -> None:
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
    sock.setsockopt(tcp, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
