"""TCP, proxies and TLS below a WebSocket, by the code that `http/request` uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gevent import socket
from websockets.uri import WebSocketURI

from execserver.http_client.connect import SocketConnector
from execserver.http_client.fetch import open_tunnel
from execserver.http_client.proxy import Proxies, UnsupportedProxy
from execserver.http_client.response_events import BrokenResponse
from execserver.http_client.url import BadUrl
from execserver.remote.answers import registry_environment
from execserver.remote.rendezvous_urls import as_http, websocket_proxies

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
        try:
            url = as_http(uri)
        except BadUrl as error:
            raise ConnectingFailed(f"the address is not usable: {error}") from None
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
        from execserver.http_client.tls import Tls  # late: not all need it
        from execserver.http_client.trust import NoTrust

        if self._tls is None:
            try:
                self._tls = Tls(self._environ)
            except NoTrust as error:
                raise ConnectingFailed(str(error)) from None
        return self._tls


def _tune(sock: socket.socket) -> None:
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
    sock.setsockopt(tcp, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
