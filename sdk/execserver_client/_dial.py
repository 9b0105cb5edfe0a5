"""TCP, proxies and TLS below the requests and WebSockets of a relay's client, on asyncio.

Proxies and trusted certificates are those of the environment, by the rules of `execserver.http_client`.
Nothing here has a time limit of its own: callers bound the whole.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

from execserver.client.carriers.urls import Address
from execserver.client.options import ExecServerClientConnectOptions
from execserver.http_client.proxy import Proxies, Proxy, UnsupportedProxy, tunnel_request
from execserver.http_client.trust import NoTrust, trust
from execserver.http_client.url import Url
from execserver_client._conversation import Conversation
from execserver_client._sockets import open_conversation

_MAX_TUNNEL_HEAD: Final = 16 * 1024


class DialFailed(Exception):
    """There is no connection; the text says why."""


class Dialer:
    """Makes connections with the proxies and certificates of one environment."""

    def __init__(self, environ: Mapping[str, str], options: ExecServerClientConnectOptions) -> None:
        """`ca_file` of the options names certificates that are trusted in place of the environment's."""
        self._environ = environ
        self._options = options
        self._tls: ssl.SSLContext | None = None

    async def open(self, url: Url, proxies: Proxies, *, tunnels: bool) -> tuple[Conversation, Proxy | None]:
        """Return a connection to the server of a URL, and the proxy that has to forward its requests.

        With `tunnels` every proxy is asked for a tunnel, also for http.  Raises `DialFailed`, OSError.
        """
        proxy = _chosen(proxies, url)
        is_secure = url.scheme == "https"
        context = self._ready_tls() if is_secure else None
        host, port = url.address if proxy is None else (proxy.host, proxy.port)
        conversation = await open_conversation(Address(False, host, port), self._options)
        try:
            if proxy is not None and (is_secure or tunnels):
                await _ask_for_tunnel(conversation, url, proxy)
            if context is not None:
                await conversation.secure(context, url.address[0])
        except BaseException:
            await conversation.close()
            raise
        return conversation, None if is_secure or tunnels else proxy

    def _ready_tls(self) -> ssl.SSLContext:
        if self._tls is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.set_alpn_protocols(["http/1.1"])
            self._trust(context)
            self._tls = context
        return self._tls

    def _trust(self, context: ssl.SSLContext) -> None:
        ca_file = self._options.ca_file
        if ca_file is not None:
            try:
                context.load_verify_locations(ca_file)
            except OSError as error:
                raise DialFailed(f"cannot read certificates in {ca_file}: {error}") from None
            return
        try:
            trust(context, self._environ)
        except NoTrust as error:
            if self._environ.get("SSL_CERT_FILE"):
                raise DialFailed(str(error)) from None
            context.load_default_certs()  # a system with its roots elsewhere; without any, nobody is trusted


def _chosen(proxies: Proxies, url: Url) -> Proxy | None:
    try:
        return proxies.proxy_for(url)
    except UnsupportedProxy as error:
        raise DialFailed(str(error)) from None


async def _ask_for_tunnel(conversation: Conversation, url: Url, proxy: Proxy) -> None:
    conversation.send(tunnel_request(url, proxy))
    head = b""
    while b"\r\n\r\n" not in head:
        data = await conversation.receive()
        head += data
        if not data or len(head) > _MAX_TUNNEL_HEAD:
            raise DialFailed("the proxy did not answer in HTTP")
    words = head.split(None, 2)
    status = words[1] if len(words) > 1 and words[0].startswith(b"HTTP/1.") else b""
    if not status.isdigit() or len(status) != 3:
        raise DialFailed("the proxy did not answer in HTTP")
    # Servers of TLS and HTTP say nothing before they are asked: what came already is the proxy's own.
    if not status.startswith(b"2") or not head.endswith(b"\r\n\r\n"):
        raise DialFailed(f"the proxy answered {status.decode()}")
