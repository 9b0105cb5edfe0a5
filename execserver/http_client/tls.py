"""TLS for https requests: which authorities are trusted, and the handshake.

Trusted are the system's roots (the folder in SSL_CERT_DIR, else the first known bundle that exists) and the
certificates in the file that CODEX_CA_CERTIFICATE or SSL_CERT_FILE names.  The single-file program brings an
OpenSSL that knows no folder of this machine, so OpenSSL's own defaults are never used.  Without any
authority, or if a named file cannot be read, a request fails with an error that says so.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping

from gevent import socket
from gevent.ssl import (
    PROTOCOL_TLS_CLIENT,
    SSLContext,
    SSLError,
    SSLSocket,
    SSLWantReadError,
    SSLWantWriteError,
    TLSVersion,
)

from execserver.protocol.errors import os_error_text

KNOWN_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch, Gentoo
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # RHEL 7 and later, Fedora
    "/etc/pki/tls/certs/ca-bundle.crt",  # older RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # Alpine
)
_OWN_FILE_VARIABLES = ("CODEX_CA_CERTIFICATE", "SSL_CERT_FILE")


class NoTrust(Exception):
    """There is no authority to check a server's certificate against."""


class Tls:
    """Makes TLS connections."""

    # The errors that a connection raises where it would have to wait.
    would_block: tuple[type[OSError], ...] = (SSLWantReadError, SSLWantWriteError)

    def __init__(self, environ: Mapping[str, str], bundles: tuple[str, ...] = KNOWN_BUNDLES) -> None:
        """Read the trusted certificates.  Raises NoTrust."""
        self._environ = environ
        self._bundles = bundles
        context = SSLContext(PROTOCOL_TLS_CLIENT)
        context.minimum_version = TLSVersion.TLSv1_2
        # Older Pythons, such as 3.11.2 of Debian 12, set it: the end of TCP then passes for an end of TLS.
        context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
        context.set_alpn_protocols(["http/1.1"])
        trusts_own = self._trust_own_file(context)
        if not self._trust_system(context) and not trusts_own:
            raise NoTrust(
                "no certificate authorities were found on this machine; "
                "install its ca-certificates or name a PEM file in SSL_CERT_FILE"
            )
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

    def _trust_own_file(self, context: SSLContext) -> bool:
        for variable in _OWN_FILE_VARIABLES:
            if path := self._environ.get(variable):
                try:
                    context.load_verify_locations(cafile=path)
                except SSLError:
                    raise NoTrust(f"{path}, named by {variable}, holds no PEM certificates") from None
                except OSError as error:
                    reason = os_error_text(error.errno or 0)
                    raise NoTrust(f"cannot read {path}, named by {variable}: {reason}") from None
                return True
        return False

    def _trust_system(self, context: SSLContext) -> bool:
        if (folder := self._environ.get("SSL_CERT_DIR")) and os.path.isdir(folder):
            context.load_verify_locations(capath=folder)
            return True
        for bundle in self._bundles:
            try:
                context.load_verify_locations(cafile=bundle)
            except OSError:  # missing, unreadable or damaged: the next one may be usable
                continue
            return True
        return False
