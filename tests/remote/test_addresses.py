"""Where a registry may be, and to which hosts an API key may go."""

from __future__ import annotations

import pytest

from execserver.remote.addresses import check_api_key_host, checked_base_url, checked_environment_id
from execserver.remote.errors import ConfigurationError


@pytest.mark.parametrize(
    "url",
    [
        "https://openai.com",
        "https://API.OpenAI.com/v1/",
        "https://a.b.openai.org",
        "https://localhost:8443",
        "https://127.9.9.9",
        "https://[::1]/x",
        "http://localhost",
        "http://127.0.0.1:80",
        "http://[::1]:1",
    ],
)
def test_an_api_key_may_be_sent_to(url: str) -> None:
    check_api_key_host(url)


RESTRICTED = (
    "remote exec-server API-key authentication is restricted to HTTPS openai.com and openai.org hosts "
    "and subdomains or loopback hosts"
)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://openai.com", RESTRICTED),
        ("https://example.com", RESTRICTED),
        ("https://notopenai.com", RESTRICTED),
        ("https://openai.com.example.com", RESTRICTED),
        ("https://openai.com@example.com", RESTRICTED),
        ("http://192.168.0.1", RESTRICTED),
        ("ftp://localhost", RESTRICTED),
        ("", "invalid remote exec-server registration URL: relative URL without a base"),
        ("localhost", "invalid remote exec-server registration URL: relative URL without a base"),
        ("http://", "invalid remote exec-server registration URL: empty host"),
        ("data:x", "remote exec-server registration URL must include a host"),
    ],
)
def test_an_api_key_is_not_sent_to(url: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_api_key_host(url)
    assert refused.value.text == text


@pytest.mark.parametrize("url", ["https://relay.test", "https://Relay.Test:8443/x"])
def test_an_api_key_may_be_sent_to_a_host_that_the_user_names(url: str) -> None:
    check_api_key_host(url, "relay.test")


@pytest.mark.parametrize(
    "url",
    [
        "http://relay.test",
        "https://a.relay.test",
        "https://relay.test.example.com",
        "https://relay.test@example.com",
        "https://xrelay.test",
    ],
)
def test_an_api_key_goes_to_exactly_that_host_and_over_https_only(url: str) -> None:
    for named in ("relay.test", "", "*", ".relay.test"):
        with pytest.raises(ConfigurationError) as refused:
            check_api_key_host(url, named)
        assert refused.value.text == RESTRICTED


def test_the_base_url_loses_blanks_and_slashes() -> None:
    assert checked_base_url(" http://x/y// ") == "http://x/y"
    with pytest.raises(ConfigurationError) as refused:
        checked_base_url(" / ")
    assert refused.value.text == (
        "environment registry configuration error: environment registry base URL is required"
    )


def test_an_environment_id_is_one_segment() -> None:
    assert checked_environment_id(" Env_1-x ") == "Env_1-x"
    with pytest.raises(ConfigurationError) as refused:
        checked_environment_id(" ")
    assert refused.value.text == (
        "environment registry configuration error: "
        "environment id is required for remote exec-server registration"
    )


@pytest.mark.parametrize("name", ["a/b", "..", "x?y=1", "é", "a b", "%20", "a\n", "a.b"])
def test_an_id_that_would_change_the_path_is_refused_with_the_cure(name: str) -> None:
    if name == "a\n":
        assert checked_environment_id(name) == "a"
        return
    with pytest.raises(ConfigurationError, match="only letters, digits, `_` and `-` are taken"):
        checked_environment_id(name)
