"""A certificate authority of one process, for the hosts whose connections its proxy opens.

Its key and those of its certificates are in the server's memory only.  OpenSSL reads a key from a file; this
one is a memory file, which is gone once it was read.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_MAX_HOSTS = 64  # whose certificates are kept; a wildcard may mean any number
_DAYS = 390  # clients refuse servers' certificates that are valid for more than 398
_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "execserver proxy of one process")])


class Authority:
    """Signs certificates for hosts; only the process whose authority it is trusts them."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate
        self._of_hosts = ec.generate_private_key(ec.SECP256R1())
        self._contexts: dict[str, ssl.SSLContext] = {}

    @classmethod
    def new(cls) -> Authority:
        """Return an authority that nobody knows yet."""
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key()
        certificate = (
            _builder(_NAME, public)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(key, certificate)

    @classmethod
    def unpacked(cls, key: bytes, certificate: bytes) -> Authority:
        """Return what `packed` was called for."""
        loaded = load_der_private_key(key, None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        return cls(loaded, x509.load_der_x509_certificate(certificate))

    def packed(self) -> tuple[bytes, bytes]:
        """Return key and certificate, for a server that takes over through memory."""
        key = self._key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        return key, self._certificate.public_bytes(Encoding.DER)

    @property
    def pem(self) -> bytes:
        """The certificate, for the process."""
        return self._certificate.public_bytes(Encoding.PEM)

    def context(self, host: str) -> ssl.SSLContext:
        """Return what serves TLS as a host.  Raises OSError."""
        found = self._contexts.get(host)
        if found is None:
            if len(self._contexts) >= _MAX_HOSTS:
                self._contexts.clear()
            found = self._contexts[host] = self._made(host)
        return found

    def _made(self, host: str) -> ssl.SSLContext:
        public = self._of_hosts.public_key()
        certificate = (
            _builder(x509.Name([]), public)
            .add_extension(x509.SubjectAlternativeName([_subject(host)]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
        context.num_tickets = 0
        context.set_alpn_protocols(["http/1.1"])
        secret = self._of_hosts.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        _load(context, certificate.public_bytes(Encoding.PEM) + secret)
        return context


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    fd = os.memfd_create("execserver-certificate", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def _builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_NAME)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
