"""TLS for https requests: the handshake.  Which authorities are trusted, `trust` says."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from gevent import socket
from gevent.ssl import (
    PROTOCOL_TLS_CLIENT,
    SSLContext,
    SSLSocket,
    SSLWantReadError,
    SSLWantWriteError,
    TLSVersion,
)

from execserver.http_client.trust import KNOWN_BUNDLES, trust


class Tls:
    """Makes TLS connections."""

    # The errors that a connection raises where it would have to wait.
    would_block: tuple[type[OSError], ...] = (SSLWantReadError, SSLWantWriteError)

    def __init__(self, environ: Mapping[str, str], bundles: tuple[str, ...] = KNOWN_BUNDLES) -> None:
        """Read the trusted certificates.  Raises NoTrust."""
        context = SSLContext(PROTOCOL_TLS_CLIENT)
        context.minimum_version = TLSVersion.TLSv1_2
        # Older Pythons, such as 3.11.2 of Debian 12, set it: the end of TCP then passes for an end of TLS.
        context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
        context.set_alpn_protocols(["http/1.1"])
        trust(context, environ, bundles)
        self._context = context

    @property
    def trusted(self) -> int:
        """The number of authorities read; OpenSSL reads those in a folder only when it needs them."""
        return self._context.cert_store_stats()["x509_ca"]

    def wrap(self, sock: socket.socket, host: str) -> SSLSocket:
        """Do the handshake with `host`; takes over the socket, and closes it on an error.

        Raises OSError (SSLError is a subclass) if the handshake fails.
        """
        try:
            tls = self._context.wrap_socket(
                sock,
                server_hostname=host,
                do_handshake_on_connect=False,
                suppress_ragged_eofs=False,  # a body that ends with the connection must not be cut unnoticed
            )
        except BaseException:
            sock.close()
            raise
        try:
            tls.do_handshake()
        except BaseException:
            tls.close()
            raise
        return tls
