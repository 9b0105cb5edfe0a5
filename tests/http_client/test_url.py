"""URLs as the reference server parses them: normal forms, refusals, and where references lead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.http_client.url import BadUrl, OtherScheme, Url, join, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://h", "http://h/"),
        ("http://h?q", "http://h/?q"),
        ("http://h#f", "http://h/#f"),
        ("HTTP://H:1/A/../b/./c/%2e%2E/d", "http://h:1/b/d"),
        ("http:\\\\h\\x\\y?a\\b", "http://h/x/y?a\\b"),
        ("http:h/x", "http://h/x"),
        ("http:/h/x", "http://h/x"),
        ("http:////h/x", "http://h/x"),
        ("  http://h/x  \n", "http://h/x"),
        ("ht\ttp://h/x\ny", "http://h/xy"),
        ("http://h/ \"<>`{}|^~[]'\\;é%zz%", "http://h/%20%22%3C%3E%60%7B%7D|^~[]'/;%C3%A9%zz%"),
        ("http://h/?\"<>`{}|^~[]'\\;é%zz%#x", "http://h/?%22%3C%3E`{}|^~[]%27\\;%C3%A9%zz%#x"),
        ("http://h/a b?c d#e f", "http://h/a%20b?c%20d#e%20f"),
        ("http://h//a//b/..", "http://h//a//"),
        ("http://h/a/../../..", "http://h/"),
        ("http://h/a/.", "http://h/a/"),
        ("http://127.1:80/", "http://127.0.0.1/"),
        ("http://0x7f.1:081/", "http://127.0.0.1:81/"),
        ("http://%31%32%37.0.0.1:/", "http://127.0.0.1/"),
        ("http://LOCALHOST/", "http://localhost/"),
        ("https://h:443/", "https://h/"),
        ("https://h:80/", "https://h:80/"),
        ("http://[0:0:0:0:0:0:0:1]:1/", "http://[::1]:1/"),
        ("http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/"),
        ("http://BÜCHER.invalid/", "http://xn--bcher-kva.invalid/"),
        ("http://faß.invalid/", "http://xn--fa-hia.invalid/"),
        ("http://a。b/", "http://a.b/"),
        ("http://a_b..c/", "http://a_b..c/"),
        ("http://user:p%20w@h/", "http://h/"),
        ("http://a@b@h/", "http://h/"),
    ],
)
def test_normal_form(text: str, expected: str) -> None:
    assert parse(text).text == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nope", "relative URL without a base"),
        ("", "relative URL without a base"),
        ("//x/y", "relative URL without a base"),
        (":x", "relative URL without a base"),
        ("1http://x", "relative URL without a base"),
        ("h!ttp://x", "relative URL without a base"),
        ("http://", "empty host"),
        ("http:", "empty host"),
        ("https:///", "empty host"),
        ("http://?x", "empty host"),
        ("http://u@:80/", "empty host"),
        ("http://::1/", "empty host"),
        ("ftp://", "empty host"),
        ("http://[::1/", "invalid IPv6 address"),
        ("http://[::g]/", "invalid IPv6 address"),
        ("foo://[x/", "invalid IPv6 address"),
        ("http://1.2.3.4.5/", "invalid IPv4 address"),
        ("http://256.1.1.1/", "invalid IPv4 address"),
        ("http://a:99999/", "invalid port number"),
        ("http://a:-1/", "invalid port number"),
        ("http://a:٣/", "invalid port number"),
        ("foo://a:99999/", "invalid port number"),
        ("http://a b/", "invalid international domain name"),
        ("http://a%00b/", "invalid international domain name"),
        ("http://xn--zz.invalid/", "invalid international domain name"),
        ("file://a b/", "invalid international domain name"),
        ("foo://a b/", "invalid domain character"),
    ],
)
def test_refusal(text: str, reason: str) -> None:
    with pytest.raises(BadUrl) as caught:
        parse(text)
    assert not isinstance(caught.value, OtherScheme)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    "text",
    ["ftp://x/", "file:///etc/hosts", "file:", "mailto:x", "data:,x", "WS://x", "foo:", "blob:http://x"],
)
def test_other_schemes_are_named(text: str) -> None:
    with pytest.raises(OtherScheme) as caught:
        parse(text)
    assert caught.value.scheme == text.partition(":")[0].lower()


@pytest.mark.parametrize(
    ("userinfo", "expected"),
    [
        ("user:pw", (b"user", b"pw")),
        ("user", (b"user", b"")),
        (":pw", (b"", b"pw")),
        ("u%40:p%20%3a:q", (b"u@", b"p ::q")),
        ("é", ("é".encode(), b"")),
        ("", None),
        (":", None),
        ("u%ff:p", None),
    ],
)
def test_credentials_are_decoded(userinfo: str, expected: tuple[bytes, bytes] | None) -> None:
    assert parse(f"http://{userinfo}@h/").credentials == expected


def test_parts_of_a_url() -> None:
    url = parse("https://h:8443/a?b#c")
    assert (url.authority, url.target, url.address) == ("h:8443", "/a?b", ("h", 8443))
    assert parse("https://[::1]/").address == ("::1", 443)


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("c", "http://h:1/a/c"),
        ("/c", "http://h:1/c"),
        ("./../c/.", "http://h:1/c/"),
        ("", "http://h:1/a/b?q"),
        ("?x", "http://h:1/a/b?x"),
        ("#x", "http://h:1/a/b?q#x"),
        ("//other", "http://other/"),
        ("\\\\other\\x", "http://other/x"),
        ("https://other/x", "https://other/x"),
        ("http:c", "http://h:1/a/c"),
        ("http:/c", "http://h:1/c"),
        ("http://u:p@other/", "http://other/"),
        ("a:b", None),
        ("http://[", None),
    ],
)
def test_join(location: str, expected: str | None) -> None:
    base = parse("http://user:pw@h:1/a/b?q#f")
    if expected is None:
        with pytest.raises(BadUrl):
            join(base, location)
    else:
        assert join(base, location).text == expected


def test_a_relative_reference_takes_no_credentials_along() -> None:
    assert join(parse("http://user:pw@h/"), "/x").credentials is None


def parsed(text: str) -> Url | None:
    try:
        return parse(text)
    except BadUrl:
        return None


@given(st.text(max_size=30))
def test_any_text_is_a_url_or_refused(text: str) -> None:
    for prefix in ("", "http://", "http://h/", "https://u@", "http://["):
        if (url := parsed(prefix + text)) is not None:
            assert parse(url.text).text == url.text
            assert url.target.isascii()
            assert not set(url.target) & set(' \r\n"<>')


@given(st.text("ab./\\?#:@[]%2e ", max_size=12))
def test_any_location_leads_somewhere_or_is_refused(location: str) -> None:
    base = parse("http://h/a/b")
    try:
        url = join(base, location)
    except BadUrl:
        return
    assert parse(url.text).text == url.text
