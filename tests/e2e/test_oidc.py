"""A server with `--ws-auth oidc`; its provider is a double on the loopback (`tests/support/oidc.py`)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.oidc import CONFIGURATION, Provider, ec_key, ed_key, key_set, rsa_key, send
from tests.support.peer import ProtocolFault, RemoteError
from tests.support.raw_http import RawHttp
from tests.support.server_process import OURS, ServerProcess, base_environment
from tests.support.waiting import wait_until
from tests.support.ws_peer import WsPeer

ROOT = Path(__file__).resolve().parents[2]
RSA, EC, ED = rsa_key(), ec_key(), ed_key()


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider(RSA, EC) as running:
        yield running


def options(issuer: str, *more: str) -> tuple[str, ...]:
    return ("--ws-auth", "oidc", "--oidc-issuer", issuer, "--oidc-audience", "box", *more)


@pytest.fixture(scope="module")
def server(provider: Provider) -> Iterator[ServerProcess]:
    env = base_environment() | {"EXECSERVER_LOG": "info"}
    with ServerProcess(OURS, options=options(provider.issuer), env=env, cwd=ROOT) as running:
        yield running


def connect(server: ServerProcess, token: str) -> WsPeer:
    return WsPeer.connect(server.url, headers=[f"Authorization: Bearer {token}"])


def is_refused(server: ServerProcess, token: str) -> bool:
    try:
        connect(server, token).close()
    except ProtocolFault as fault:
        return "401" in str(fault)
    return False


def test_who_the_provider_names_is_in_the_log_and_in_the_list(
    server: ServerProcess, provider: Provider
) -> None:
    claims = provider.claims(time.time(), email="ada@example.org", email_verified=True)
    token = RSA.token(claims)
    with connect(server, token) as peer:
        session = peer.open_session()
        assert peer.call("process/list")["identity"] == {"way": "oidc", "name": "ada <ada@example.org>"}
    assert "way=oidc name='ada <ada@example.org>'" in server.errors()
    assert token not in server.errors()
    assert CONFIGURATION in provider.asked
    # A newer token of the same person comes back to the session, another person's does not.
    with connect(server, EC.token(claims | {"exp": claims["exp"] + 1})) as again:
        assert again.open_session(session) == session
    stranger = EC.token(claims | {"sub": "eve"})
    with connect(server, stranger) as other, pytest.raises(RemoteError, match="unknown session id"):
        other.open_session(session)


def test_who_has_no_token_of_this_provider_stays_out(server: ServerProcess, provider: Provider) -> None:
    claims = provider.claims(time.time())
    assert not is_refused(server, RSA.token(claims))
    for token in (
        "",
        rsa_key().token(claims),
        RSA.token(claims | {"aud": "another"}),
        RSA.token(claims | {"iss": provider.issuer + "/"}),
        RSA.token(claims | {"exp": time.time() - 31}),
        RSA.token(claims, alg="none"),
    ):
        assert is_refused(server, token)
    with pytest.raises(ProtocolFault, match="401"):
        WsPeer.connect(server.url)


def test_a_provider_that_is_not_there_lets_nobody_in_and_stops_no_server(provider: Provider) -> None:
    provider.answers[CONFIGURATION] = lambda handler: send(handler, b"", 503)
    try:
        with ServerProcess(OURS, options=options(provider.issuer), cwd=ROOT) as server:
            wait_until(lambda: "answered 503" in server.errors())
            assert is_refused(server, RSA.token(provider.claims(time.time())))
            assert "nobody gets in" in server.errors()
            with RawHttp(server.url) as connection:
                assert connection.ask("GET /readyz HTTP/1.1").status == 200
    finally:
        del provider.answers[CONFIGURATION]


@pytest.mark.long
def test_keys_that_a_provider_changes_are_found() -> None:
    """Ten seconds after it was asked last, and not earlier."""
    with Provider(RSA) as changing, ServerProcess(OURS, options=options(changing.issuer), cwd=ROOT) as server:
        claims = changing.claims(time.time())
        assert not is_refused(server, RSA.token(claims))
        changing.keys = [ED]
        assert is_refused(server, ED.token(claims))
        wait_until(lambda: not is_refused(server, ED.token(claims)), timeout=30)
        assert is_refused(server, RSA.token(claims))
        assert changing.asked.count(CONFIGURATION) == 2


def test_keys_of_a_file_are_read_again(tmp_path: Path) -> None:
    file, issuer = tmp_path / "keys.json", "urn:an issuer without a network"
    file.write_bytes(key_set(EC))
    claims = {"iss": issuer, "aud": "box", "sub": "ada", "exp": int(time.time()) + 600}
    with ServerProcess(OURS, options=options(issuer, "--oidc-jwks", str(file)), cwd=ROOT) as server:
        assert not is_refused(server, EC.token(claims))
        (tmp_path / "new").write_bytes(key_set(ED))
        os.replace(tmp_path / "new", file)
        assert is_refused(server, EC.token(claims))
        assert not is_refused(server, ED.token(claims))
