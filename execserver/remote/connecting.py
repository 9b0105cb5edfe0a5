"""TCP, proxies and TLS below a WebSocket, by the code that `http/request` uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gevent import socket
from websockets.uri import WebSocketURI

from execserver.http_client.connect import SocketConnector
from execserver.http_client.exchange import BrokenResponse
from execserver.http_client.fetch import open_tunnel
from execserver.http_client.proxy import Proxies, UnsupportedProxy
from execserver.http_client.url import BadUrl, Url, parse
from execserver.remote.http import registry_environment

if TYPE_CHECKING:
    from execserver.http_client.tls import Tls

_UNSENT_BYTES = 64 * 1024  # more in the kernel would only lengthen the queue a keystroke's echo has to pass
_UNACKNOWLEDGED_MS = 60_000


class ConnectingFailed(Exception):
    """No connection could be made, for another reason than a network error; the text says which."""


class RendezvousConnector:
    """Makes connections; keeps the TLS context and the look-up threads between them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = registry_environment(environ)
        self._proxies = Proxies(websocket_proxies(self._environ))
        self._connector = SocketConnector()
        self._tls: Tls | None = None

    def connect(self, uri: WebSocketURI) -> socket.socket:
        """Return a socket on which the upgrade can be sent.  Raises OSError or ConnectingFailed.

        Every proxy is asked for a tunnel (CONNECT), also for ws://, as by the reference.
        """
        url = _as_http(uri)
        tls = self._ready_tls() if uri.secure else None
        try:
            proxy = self._proxies.proxy_for(url)
        except UnsupportedProxy as error:
            raise ConnectingFailed(str(error)) from None
        sock = self._connector.connect(*(url.address if proxy is None else (proxy.host, proxy.port)))
        try:
            _tune(sock)
            if proxy is not None:
                open_tunnel(sock, url, proxy)
        except BrokenResponse as broken:
            raise ConnectingFailed(str(broken)) from None
        except BaseException:
            sock.close()
            raise
        return sock if tls is None else tls.wrap(sock, url.address[0])

    def _ready_tls(self) -> Tls:
        from execserver.http_client.tls import NoTrust, Tls  # late: not all need it

        if self._tls is None:
            try:
                self._tls = Tls(self._environ)
            except NoTrust as error:
                raise ConnectingFailed(str(error)) from None
        return self._tls


def websocket_proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the rule for WebSockets: wss takes HTTPS_PROXY, then HTTP_PROXY."""
    found = dict(environ)
    given = [found.get(name, found.get(name.lower(), "")) for name in ("HTTPS_PROXY", "HTTP_PROXY")]
    found["HTTPS_PROXY"] = given[0] or given[1]
    return found


def _as_http(uri: WebSocketURI) -> Url:
    host = f"[{uri.host}]" if ":" in uri.host else uri.host
    try:
        return parse(f"{'https' if uri.secure else 'http'}://{host}:{uri.port}/")
    except BadUrl as error:
        raise ConnectingFailed(f"the address is not usable: {error}") from None


def _tune(sock: socket.socket) -> None:
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
    sock.setsockopt(tcp, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
