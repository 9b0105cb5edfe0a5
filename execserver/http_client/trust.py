"""Which authorities a TLS client trusts.

The system's roots (the folder in SSL_CERT_DIR, else the first known bundle that exists) and the certificates
in the file that CODEX_CA_CERTIFICATE or SSL_CERT_FILE names.  The single-file program brings an OpenSSL that
knows no folder of this machine, so OpenSSL's own defaults are never used.  Without any authority, or if a
named file cannot be read, a request fails with an error that says so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from ssl import SSLContext, SSLError

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


def trust(context: SSLContext, environ: Mapping[str, str], bundles: tuple[str, ...] = KNOWN_BUNDLES) -> None:
    """Have a context trust the authorities that an environment names.  Raises NoTrust."""
    trusts_own = _trust_own_file(context, environ)
    if not _trust_system(context, environ, bundles) and not trusts_own:
        raise NoTrust(
            "no certificate authorities were found on this machine; "
            "install its ca-certificates or name a PEM file in SSL_CERT_FILE"
        )


def _trust_own_file(context: SSLContext, environ: Mapping[str, str]) -> bool:
    for variable in _OWN_FILE_VARIABLES:
        if path := environ.get(variable):
            try:
                context.load_verify_locations(cafile=path)
            except SSLError:
                raise NoTrust(f"{path}, named by {variable}, holds no PEM certificates") from None
            except OSError as error:
                reason = os_error_text(error.errno or 0)
                raise NoTrust(f"cannot read {path}, named by {variable}: {reason}") from None
            return True
    return False


def _trust_system(context: SSLContext, environ: Mapping[str, str], bundles: tuple[str, ...]) -> bool:
    if (folder := environ.get("SSL_CERT_DIR")) and os.path.isdir(folder):
        context.load_verify_locations(capath=folder)
        return True
    for bundle in bundles:
        try:
            context.load_verify_locations(cafile=bundle)
        except OSError:  # missing, unreadable or damaged: the next one may be usable
            continue
        return True
    return False
