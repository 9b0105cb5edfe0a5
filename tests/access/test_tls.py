"""TLS of a listener: files that can be used, texts for those that cannot, and whom a certificate names."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from execserver.access.identity import NOBODY, Identity
from execserver.access.tls import TlsError, TlsFiles, identity_of, make_context
from tests.support.certificates import make_authority


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    """A certificate with its key, and an authority."""
    authority = make_authority()
    (tmp_path / "both.pem").write_bytes(authority.issue("127.0.0.1"))
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    both = str(tmp_path / "both.pem")
    return TlsFiles(both, both, str(tmp_path / "ca.pem"))


def test_old_versions_and_renegotiation_are_off(files: TlsFiles) -> None:
    context = make_context(files)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert make_context(files._replace(client_ca=None)).verify_mode == ssl.CERT_NONE


def test_files_that_cannot_be_used_are_named(files: TlsFiles, tmp_path: Path) -> None:
    (tmp_path / "other.pem").write_bytes(make_authority().issue("127.0.0.1"))
    (tmp_path / "text").write_text("no certificate")
    for changed, text in [
        ({"certificate": f"{tmp_path}/none"}, f"cannot use the certificate {tmp_path}/none: No such file"),
        ({"certificate": f"{tmp_path}/text"}, f"cannot use the certificate {tmp_path}/text: "),
        ({"key": f"{tmp_path}/other.pem"}, "cannot use the certificate .*mismatch"),
        ({"client_ca": f"{tmp_path}/none"}, f"cannot use the authority {tmp_path}/none: No such file"),
        ({"client_ca": f"{tmp_path}/text"}, f"cannot use the authority {tmp_path}/text: "),
    ]:
        with pytest.raises(TlsError, match=text):
            make_context(files._replace(**changed))


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked(files: TlsFiles, tmp_path: Path) -> None:
    key = load_pem_private_key(Path(files.key).read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    (tmp_path / "locked.pem").write_bytes(locked)
    with pytest.raises(TlsError, match="passphrase"):
        make_context(files._replace(key=str(tmp_path / "locked.pem")))


def subject(*names: tuple[str, str]) -> dict[str, Any]:
    return {"subject": tuple((name,) for name in names)}


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        (subject(("organizationName", "o"), ("commonName", "devbox")), "devbox"),
        (subject(("commonName", "devbox")) | {"subjectAltName": (("DNS", "other"),)}, "devbox"),
        (subject() | {"subjectAltName": (("URI", "spiffe://x/y"), ("DNS", "other"))}, "spiffe://x/y"),
        (subject(("commonName", "a\nb")) | {"subjectAltName": (("DNS", "other"),)}, "other"),
        (subject(("commonName", "x" * 200)), "x" * 128),
        (subject(), "certificate without a name"),
    ],
)
def test_a_certificate_names_its_holder(certificate: dict[str, Any], name: str) -> None:
    assert identity_of(certificate) == Identity("tls", name)


@pytest.mark.parametrize("certificate", [None, {}])
def test_no_certificate_proves_nothing(certificate: dict[str, Any] | None) -> None:
    assert identity_of(certificate) is NOBODY
