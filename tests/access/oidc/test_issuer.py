"""How a provider is asked for its keys: over which URLs, and what it may answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from execserver.access.oidc import issuer as asking
from execserver.access.oidc.issuer import fetch_keys
from execserver.access.oidc.issuer_url import BadIssuer, configuration_url, key_url
from execserver.access.oidc.key_set import MAX_BYTES
from execserver.access.oidc.keys import NoKeys
from tests.support.oidc import CONFIGURATION, KEYS, Provider, ed_key, send

KEY = ed_key()


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider(KEY) as running:
        yield running


def refusal(issuer: str) -> str:
    with pytest.raises(NoKeys) as refused:
        fetch_keys(issuer, {})
    return str(refused.value)


def test_the_keys_come_from_where_the_configuration_says(provider: Provider) -> None:
    assert fetch_keys(provider.issuer, {}).find("ed", "EdDSA") is not None
    assert provider.asked == [CONFIGURATION, KEYS]


def test_no_proxy_stands_before_the_loopback(provider: Provider) -> None:
    proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY"), "http://127.0.0.1:1")
    assert fetch_keys(provider.issuer, proxies).find("ed", "EdDSA") is not None


def test_an_issuer_is_the_same_text_everywhere(provider: Provider) -> None:
    assert "another issuer" in refusal(provider.issuer + "/")
    assert provider.asked == [CONFIGURATION]  # one slash between, and no keys are asked for
    provider.configuration = {"issuer": provider.issuer + "/"}
    assert "another issuer" in refusal(provider.issuer)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, "names no jwks_uri"),
        (["x"], "names no jwks_uri"),
        ("http://192.0.2.1/keys", "not https"),
        ("file:///etc/passwd", "no http or https URL"),
        ("/keys", "no http or https URL"),
        ("https://user:pw@keys.example/", "has a user"),
    ],
)
def test_keys_come_over_https_only(provider: Provider, found: object, text: str) -> None:
    provider.configuration = {"jwks_uri": found}
    assert text in refusal(provider.issuer)
    assert provider.asked == [CONFIGURATION]


def test_a_provider_elsewhere_does_not_send_us_to_our_own_loopback() -> None:
    elsewhere = configuration_url("https://login.example/tenant/")
    assert elsewhere.text == "https://login.example/tenant/.well-known/openid-configuration"
    assert key_url("https://keys.example/v3", elsewhere).text == "https://keys.example/v3"
    for found in ("http://127.0.0.1:8080/", "https://localhost/x", "http://[::1]/", "https://127.1/"):
        with pytest.raises(BadIssuer, match="loopback"):
            key_url(found, elsewhere)


@pytest.mark.parametrize(
    "issuer",
    [
        *("http://login.example", "http://127.0.0.1.example.org/", "http://2130706434.example/", "ftp://x/"),
        *("login.example", "", "https://user@login.example", "https://login.example/?x=1", "https://a/#b"),
    ],
)
def test_an_issuer_that_could_be_anybody_is_refused(issuer: str) -> None:
    with pytest.raises(BadIssuer):
        configuration_url(issuer)


def redirecting(handler: BaseHTTPRequestHandler) -> None:
    send(handler, b"", 302, Location="/keys2")


def huge(handler: BaseHTTPRequestHandler) -> None:
    try:
        send(handler, b" " * (MAX_BYTES * 20))
    except OSError:
        pass  # nobody reads it to its end


def without_length(handler: BaseHTTPRequestHandler) -> None:
    """Send without an end."""
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b" " * 65536)
    except OSError:
        pass


def broken_off(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100")
    handler.end_headers()
    handler.wfile.write(b"{")


def slow(handler: BaseHTTPRequestHandler) -> None:
    """Send a byte now and then."""
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(200):
            handler.wfile.write(b" ")
            time.sleep(0.05)
    except OSError:
        pass


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (redirecting, "answered 302, where only 200 counts"),
        (lambda handler: send(handler, b"", 503), "answered 503"),
        (huge, "is longer than"),
        (without_length, "is longer than"),
        (broken_off, "did not come whole"),
        (slow, "no answer within"),
        (lambda handler: send(handler, b"<html>"), "not one JSON object"),
        (
            lambda handler: send(handler, json.dumps({"keys": [KEY.jwk] * 1000}).encode()),
            "more than 200 keys",
        ),
    ],
    ids=["redirect", "status", "huge", "endless", "cut", "slow", "html", "many"],
)
def test_an_answer_of_another_kind_gives_no_keys(
    provider: Provider,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[BaseHTTPRequestHandler], None],
    text: str,
) -> None:
    if answer is slow:
        monkeypatch.setattr(asking, "REQUEST_S", 0.3)
    provider.answers[KEYS] = answer
    assert text in refusal(provider.issuer)
    assert "/keys2" not in provider.asked


def test_nobody_there_is_told() -> None:
    with Provider(KEY) as gone:
        issuer = gone.issuer
    assert "error sending request for url" in refusal(issuer)
