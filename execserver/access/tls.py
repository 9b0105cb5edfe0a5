"""TLS of a listener: its certificate, whose certificates of clients count, and what these prove.

Reads files, and nothing else.  TLS 1.2 at least.
"""

from __future__ import annotations

import ssl
from typing import Any, NamedTuple

from execserver.access.identity import NOBODY, Identity

_MAX_NAME = 128


class TlsError(OSError):
    """A certificate, a key or an authority cannot be used; the text is for the user."""


class TlsFiles(NamedTuple):
    """The files of the options, PEM: certificate with its chain, key, and the authority of clients if any."""

    certificate: str
    key: str
    client_ca: str | None = None


def make_context(files: TlsFiles) -> ssl.SSLContext:
    """Read the files; return a context for connections.  Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        # A key with a passphrase is refused: OpenSSL would ask for it on the terminal.
        context.load_cert_chain(files.certificate, files.key, password=_no_passphrase)
    except (OSError, ValueError) as error:
        raise TlsError(f"cannot use the certificate {files.certificate}: {_reason(error)}") from None
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except (OSError, ValueError) as error:
            raise TlsError(f"cannot use the authority {files.client_ca}: {_reason(error)}") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def identity_of(certificate: dict[str, Any] | None) -> Identity:
    """Return who a verified certificate of a client names: its common name, else its first other name."""
    if not certificate:
        return NOBODY
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    names += [value for _, value in certificate.get("subjectAltName", ())]
    shown = [name for name in names if isinstance(name, str) and name.isprintable() and name]
    return Identity("tls", shown[0][:_MAX_NAME] if shown else "certificate without a name")


def _no_passphrase() -> str:
    raise ValueError("the key needs a passphrase")


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return f"{text}".partition(" (_ssl.c")[0]
