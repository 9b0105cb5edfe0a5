"""Which proxy the environment names for which URL; the rows are what the reference does."""

from __future__ import annotations

import pytest

from execserver.http_client.proxy import Proxies, Proxy, UnsupportedProxy
from execserver.http_client.url import parse


def proxy(environ: dict[str, str], url: str = "http://a.test/") -> Proxy | None:
    return Proxies(environ).proxy_for(parse(url))


PLAIN = Proxy("http", "p", 8, None)


@pytest.mark.parametrize(
    ("environ", "for_http", "for_https"),
    [
        ({}, None, None),
        ({"http_proxy": "http://p:8"}, PLAIN, None),
        ({"HTTP_PROXY": "http://p:8"}, PLAIN, None),
        ({"https_proxy": "http://p:8"}, None, PLAIN),
        ({"ALL_PROXY": "http://p:8"}, PLAIN, PLAIN),
        ({"all_proxy": "p:8", "http_proxy": "::bad"}, PLAIN, PLAIN),
        ({"HTTP_PROXY": "", "http_proxy": "http://p:8"}, None, None),
        ({"HTTP_PROXY": "http://q:9", "http_proxy": "http://p:8"}, Proxy("http", "q", 9, None), None),
        ({"http_proxy": "http://p:8", "REQUEST_METHOD": "GET"}, None, None),
        ({"HTTP_PROXY": "http://q", "ALL_PROXY": "http://p:8", "REQUEST_METHOD": "GET"}, PLAIN, PLAIN),
        ({"http_proxy": "ftp://p:8"}, None, None),
        ({"http_proxy": "http://p:99999"}, None, None),
    ],
)
def test_variables(environ: dict[str, str], for_http: Proxy | None, for_https: Proxy | None) -> None:
    assert proxy(environ) == for_http
    assert proxy(environ, "https://a.test/") == for_https


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p", Proxy("http", "p", 80, None)),
        ("p:8", PLAIN),
        ("http://p:8/path?x", PLAIN),
        ("HTTP://p:8", PLAIN),
        ("http://[::1]:8", Proxy("http", "::1", 8, None)),
        ("http://[::1]", Proxy("http", "::1", 80, None)),
        ("http://u:p%40@p:8", Proxy("http", "p", 8, b"Basic dTpwQA==")),
        ("http://u@p:8", Proxy("http", "p", 8, b"Basic dTo=")),
    ],
)
def test_spellings_of_a_proxy(text: str, expected: Proxy) -> None:
    assert proxy({"http_proxy": text}) == expected


@pytest.mark.parametrize("text", ["socks5://p:1", "socks5h://p:1", "https://p:1"])
def test_proxies_of_other_kinds_are_refused_by_name(text: str) -> None:
    with pytest.raises(UnsupportedProxy, match=text.partition(":")[0]):
        proxy({"ALL_PROXY": text})


@pytest.mark.parametrize(
    ("entries", "host", "direct"),
    [
        ("*", "a.test", True),
        ("x,*", "a.test", True),
        ("a.test", "a.test", True),
        ("a.test", "b.a.test", True),
        ("a.test", "ba.test", False),
        (".a.test", "b.a.test", True),
        (".a.test", "a.test", True),
        ("A.TEST", "a.test", True),
        ("x, a.test ,y", "a.test", True),
        ("*.a.test", "b.a.test", False),
        ("127.0.0.0/8", "127.0.0.9", True),
        ("127.0.0.1/8", "127.0.0.9", True),
        ("10.0.0.0/8", "127.0.0.9", False),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1:1", "127.0.0.1", False),
        ("a.test:1", "a.test", False),
        ("::1", "[::1]", True),
        ("[::1]", "[::1]", False),
        ("fe80::/10", "[fe80::1]", True),
        ("127.0.0.0/8", "a.test", False),
        ("nonsense/8", "127.0.0.1", False),
        ("<local>", "localhost", False),
        ("", "a.test", False),
        ("127", "127.0.0.1", False),
        ("a.test.", "a.test", False),
    ],
)
def test_what_no_proxy_exempts(entries: str, host: str, direct: bool) -> None:
    got = proxy({"http_proxy": "http://p:8", "no_proxy": entries}, f"http://{host}:1/")
    assert got == (None if direct else PLAIN)


def test_an_empty_upper_case_no_proxy_hides_the_other() -> None:
    assert proxy({"http_proxy": "p:8", "no_proxy": "a.test", "NO_PROXY": ""}) == PLAIN
