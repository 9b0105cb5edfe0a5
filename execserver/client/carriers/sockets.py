"""The sockets of the Python client: TCP, with TLS or without, and Unix."""

from __future__ import annotations

import socket as _socket

from gevent import socket

from execserver.client.carriers.tuning import tune
from execserver.client.carriers.urls import Address
from execserver.client.options import ExecServerClientConnectOptions


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
    tune(sock)
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
