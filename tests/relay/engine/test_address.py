"""The engine's URL and the file with its password."""

from __future__ import annotations

from pathlib import Path

import pytest

from execserver.relay.engine.address import Credentials, EngineAddress, address_of, credentials_in
from execserver.relay.errors import CannotServe


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://engine.test", EngineAddress(False, (("engine.test", 6379),))),
        ("redis://127.0.0.1:7000/3", EngineAddress(False, (("127.0.0.1", 7000),), None, 3)),
        ("rediss://[::1]:6380", EngineAddress(True, (("::1", 6380),))),
        ("redis+sentinel://a:1,b/main", EngineAddress(False, (("a", 1), ("b", 26379)), "main")),
        ("rediss+sentinel://a/main/2", EngineAddress(True, (("a", 26379),), "main", 2)),
    ],
)
def test_urls_that_are_taken(url: str, address: EngineAddress) -> None:
    assert address_of(url) == address
    assert address_of(address.shown) == address


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "redis:",
            "redis://",
            "http://a",
            "redis://a:0",
            "redis://a:70000",
            "redis://a/x",
            "redis://a/1/2",
        ),
        *("redis://a,b", "redis+sentinel://a", "redis+sentinel://a/", "redis://a?db=1", "redis://a b"),
    ],
)
def test_urls_that_are_not(url: str) -> None:
    with pytest.raises(CannotServe, match="invalid --engine URL; expected redis://"):
        address_of(url)


@pytest.mark.parametrize("url", ["redis://:secret-1@host", "rediss://me:secret-1@host/0", "redis://me@host"])
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(CannotServe, match="--engine-auth") as refused:
        address_of(url)
    assert "secret-1" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "credentials"),
    [
        ("relay:pass:word\n", Credentials("relay", "pass:word")),
        (":password", Credentials("", "password")),
    ],
)
def test_credentials_come_from_a_file(tmp_path: Path, content: str, credentials: Credentials) -> None:
    path = tmp_path / "auth"
    path.write_text(content)
    path.chmod(0o600)
    assert credentials_in(str(path)) == credentials


@pytest.mark.parametrize(
    "content", [b"", b"password", b"user:", b"user:a\nb", b"\xff:x", b"u:" + b"x" * 5000]
)
def test_a_file_without_credentials_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "auth"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(CannotServe, match="expected one line, USER:PASSWORD"):
        credentials_in(str(path))


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "auth"
    path.write_text(":secret")
    path.chmod(0o640)
    with pytest.raises(CannotServe, match="chmod 600"):
        credentials_in(str(path))
    with pytest.raises(CannotServe, match="No such file"):
        credentials_in(str(tmp_path / "missing"))
