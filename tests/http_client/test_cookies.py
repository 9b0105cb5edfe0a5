"""Which cookies are kept, for which hosts, and for how long.  The clock is a number."""

from __future__ import annotations

import pytest

from execserver.http_client.cookies import MAX_BYTES, MAX_COOKIES, CookieJar, is_kept_for
from execserver.http_client.url import parse

NOW = 1_800_000_000.0
HOST = "https://chatgpt.com/a/b/c"


def jar_with(*lines: str, url: str = HOST) -> CookieJar:
    jar = CookieJar()
    jar.store(parse(url), [(b"set-cookie", line.encode("latin-1")) for line in lines], NOW)
    return jar


def sent(jar: CookieJar, url: str = HOST, after: float = 0.0) -> str | None:
    found = jar.header(parse(url), NOW + after)
    return None if found is None else found.decode("latin-1")


def test_it_is_sent_again() -> None:
    assert sent(jar_with("__cflb=west")) == "__cflb=west"


@pytest.mark.parametrize(
    "url",
    [
        "chatgpt.com",
        "a.chatgpt.com",
        "a.b.chatgpt.com",
        "chat.openai.com",
        "chatgpt-staging.com",
        "x.chatgpt-staging.com",
        "CHATGPT.com",
        "chatgpt.com:8443",
    ],
)
def test_these_hosts_have_cookies(url: str) -> None:
    assert is_kept_for(parse(f"https://{url}/"))
    assert not is_kept_for(parse(f"http://{url}/"))


@pytest.mark.parametrize(
    "host",
    [
        "openai.com",
        "api.openai.com",
        "a.chat.openai.com",
        "notchatgpt.com",
        "chatgpt.com.evil.example",
        "chatgpt.com.",
        "xchatgpt-staging.com",
        "127.0.0.1",
        "com",
    ],
)
def test_no_other_host_has_any(host: str) -> None:
    url = f"https://{host}/"
    assert not is_kept_for(parse(url))
    assert len(jar_with("__cflb=west", "__cflb=west; Domain=chatgpt.com", url=url)) == 0
    assert sent(jar_with("__cflb=west", "__cflb=w; Domain=chatgpt.com"), url) is None


@pytest.mark.parametrize(
    "name",
    [
        "__cf_bm",
        "__cflb",
        "__cfruid",
        "__cfseq",
        "__cfwaitingroom",
        "_cfuvid",
        "cf_clearance",
        "cf_ob_info",
        "cf_use_ob",
        "cf_chl_",
        "cf_chl_2",
        "cf_chl_rc_i",
    ],
)
def test_these_names_are_kept(name: str) -> None:
    assert sent(jar_with(f"{name}=v")) == f"{name}=v"


@pytest.mark.parametrize(
    "line",
    [
        *[
            "session=x",
            "__CFLB=x",
            "__cflbx=x",
            "xcf_chl_1=x",
            "__Secure-next-auth.session-token=x",
            "=x",
            "__cflb",
        ],
        *("", "cf_chl_a b=x", "__cflb=a b", "__cflb=a\x7f", "__cflb=é", "__cflb=" + "x" * MAX_BYTES),
    ],
)
def test_no_others_are(line: str) -> None:
    assert len(jar_with(line)) == 0


def test_a_cookie_without_a_domain_is_its_hosts_alone() -> None:
    jar = jar_with("__cflb=west")
    assert sent(jar, "https://a.chatgpt.com/a/b/c") is None
    assert sent(jar, "http://chatgpt.com/a/b/c") is None


def test_a_domain_includes_its_subdomains() -> None:
    jar = jar_with("__cflb=west; Domain=.ChatGPT.com; Path=/", url="https://a.chatgpt.com/")
    for host in ("chatgpt.com", "a.chatgpt.com", "b.chatgpt.com"):
        assert sent(jar, f"https://{host}/") == "__cflb=west"
    assert sent(jar, "https://chatgpt-staging.com/") is None


@pytest.mark.parametrize("domain", ["com", ".com", "b.chatgpt.com", "evil.example", "gpt.com"])
def test_a_domain_that_is_not_the_hosts_own_is_refused(domain: str) -> None:
    assert len(jar_with(f"__cflb=west; Domain={domain}")) == 0


def test_a_domain_above_the_hosts_reaches_the_hosts_only() -> None:
    jar = jar_with("__cflb=west; Domain=openai.com; Path=/", url="https://chat.openai.com/")
    assert sent(jar, "https://chat.openai.com/") == "__cflb=west"
    assert sent(jar, "https://api.openai.com/") is None


@pytest.mark.parametrize(
    ("line", "path", "fits"),
    [
        ("__cflb=v", "/a/b/", True),
        ("__cflb=v", "/a/b", True),
        ("__cflb=v", "/a/bc", False),
        ("__cflb=v", "/", False),
        ("__cflb=v; Path=/x/", "/x/y", True),
        ("__cflb=v; Path=/x/", "/x", False),
        ("__cflb=v; Path=relative", "/a/b/d", True),
        ("__cflb=v; path=/; PATH=/z", "/z", True),
        ("__cflb=v; path=/; PATH=/z", "/", False),
    ],
)
def test_paths_are_obeyed(line: str, path: str, fits: bool) -> None:
    assert sent(jar_with(line), f"https://chatgpt.com{path}") == ("__cflb=v" if fits else None)


@pytest.mark.parametrize(
    ("attribute", "lasts"),
    [
        ("Max-Age=60", 60),
        ("Max-Age=60; Expires=Fri, 15 Jan 2027 08:00:00 GMT", 60),
        ("Expires=Fri, 15 Jan 2027 08:01:40 GMT", 100),
        ("expires=Fri, 15-Jan-27 08:01:40 GMT", 100),
    ],
)
def test_expiry_is_obeyed(attribute: str, lasts: int) -> None:
    jar = jar_with(f"__cflb=v; {attribute}")
    assert sent(jar, after=lasts - 1) == "__cflb=v"
    assert sent(jar, after=lasts) is None
    assert len(jar) == 0


@pytest.mark.parametrize("attribute", ["Max-Age=x", "Expires=never", "Expires=", "Max-Age=", "Expires=1 2 3"])
def test_an_expiry_that_cannot_be_read_is_none(attribute: str) -> None:
    assert sent(jar_with(f"__cflb=v; {attribute}"), after=1e9) == "__cflb=v"


@pytest.mark.parametrize("attribute", ["Max-Age=0", "Max-Age=-5", "Expires=Thu, 01 Jan 1970 00:00:00 GMT"])
def test_a_server_can_take_it_back(attribute: str) -> None:
    assert len(jar_with("__cflb=v", f"__cflb=; {attribute}")) == 0


def test_a_later_value_replaces_the_first_and_keeps_its_place() -> None:
    jar = jar_with("__cflb=a; Path=/", "__cf_bm=m; Path=/", "__cflb=b; Path=/", "_cfuvid=u; Path=/a/b")
    assert sent(jar) == "_cfuvid=u; __cflb=b; __cf_bm=m"


def test_they_are_bounded() -> None:
    jar = jar_with(*(f"cf_chl_{number}=v; Path=/" for number in range(MAX_COOKIES + 5)))
    assert len(jar) == MAX_COOKIES
    assert (sent(jar) or "").startswith("cf_chl_5=v; ")


def test_values_are_not_shown() -> None:
    assert repr(jar_with("__cflb=west")) == "<CookieJar: 1 cookies>"
