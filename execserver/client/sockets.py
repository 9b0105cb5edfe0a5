"""The sockets of the Python client: TCP, with TLS or without, and Unix; and the token that goes over them."""

from __future__ import annotations

import socket as _socket
from typing import Final

from gevent import socket

from execserver.client.errors import ConnectFailed, InvalidUrl
from execserver.client.options import ExecServerClientConnectOptions
from execserver.client.urls import Address

# A peer that vanished is noticed after 20 s, soon enough to resume before its session expires.
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 2))
_UNACKNOWLEDGED_MS: Final = 20_000
_MAX_TOKEN_BYTES: Final = 16 * 1024  # more fits no request head


def headers_for(address: Address, options: ExecServerClientConnectOptions) -> dict[str, str]:
    """Return the headers of the upgrade, the token among them; raise InvalidUrl, ConnectFailed.

    A token file is read for each connection, so that a token can be replaced while a client lives.
    """
    token = options.token
    if token is None and options.token_file is not None:
        token = _token_in(options.token_file)
    if token is None:
        return dict(options.headers)
    if not address.is_private:
        raise InvalidUrl("a token is sent over wss:// or on this machine only: others could read it")
    if not token.isascii() or not token.isprintable() or not token:
        raise InvalidUrl("the token has characters that no header can hold, or is empty")
    return {**options.headers, "Authorization": f"Bearer {token}"}


def open_socket(address: Address) -> socket.socket:
    """Connect; raise OSError."""
    if address.socket_file is not None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(address.socket_file)
        except BaseException:
            sock.close()
            raise
        return sock
    sock = _connected(address.host, address.port)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
    return sock


def _connected(host: str, port: int) -> socket.socket:
    try:
        # An address needs no resolver, which would start a thread.  As bytes: a text would load the rules of
        # international names.
        known = _socket.getaddrinfo(
            host.encode("ascii"), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    except (OSError, UnicodeEncodeError):
        return socket.create_connection((host, port))
    family, kind, protocol, _, target = known[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.connect(target)
    except BaseException:
        sock.close()
        raise
    return sock


def secure(sock: socket.socket, host: str, options: ExecServerClientConnectOptions) -> socket.socket:
    """Put TLS around a socket, which belongs to the result then; raise OSError, TypeError."""
    from gevent import ssl  # costs 40 ms, and most connections are local

    context = options.ssl_context
    if context is None:
        # gevent has only the standard library's create_default_context, whose sockets block all greenlets.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if options.ca_file is None:
                context.load_default_certs()
            else:
                context.load_verify_locations(options.ca_file)
            if options.client_certificate is not None:
                context.load_cert_chain(*options.client_certificate)
        except BaseException:
            sock.close()
            raise
    elif not _is_green(context):
        sock.close()
        raise TypeError("ssl_context must be a gevent.ssl.SSLContext: others block every greenlet")
    secured = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    try:
        secured.do_handshake()
    except BaseException:
        secured.close()
        raise
    return secured


def _is_green(context: object) -> bool:
    from gevent.ssl import SSLContext

    return isinstance(context, SSLContext)


def _token_in(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise ConnectFailed(f"cannot read the token file {path}: {error.strerror}") from None
    if len(data) > _MAX_TOKEN_BYTES:
        raise ConnectFailed(f"the token file {path} is too large")
    return data.decode("ascii", "replace").strip()
