"""Where credentials may be sent."""

from __future__ import annotations

import pytest

from execserver.egress.providers import Auth, Destination, Provider, Unmaskable


@pytest.mark.parametrize(
    ("prefix", "target"),
    [
        ("api.example.com", "/"),
        ("https://api.example.com", "/anything/../else?x"),
        ("HTTPS://API.example.com./", "/v1"),
        ("https://api.example.com:443/v1", "/v1"),
        ("https://api.example.com/v1", "/v1/chat?path=/../x"),
        ("https://api.example.com/v1/", "/v1/chat"),
        ("https://api.example.com/v1/", "/v1/caf%C3%A9/%E2%82%AC/%F0%9F%98%80/a%20b"),
        ("*.example.com", "/x"),
        ("https://**.example.com/v1", "/v1?x"),
    ],
)
def test_a_request_below_the_prefix_is_covered(prefix: str, target: str) -> None:
    assert Destination(prefix).covers("api.example.com", 443, target)


@pytest.mark.parametrize(
    ("host", "port", "target"),
    [
        *(
            ("api.example.com", 8443, "/v1/x"),
            ("example.com", 443, "/v1/x"),
            ("x.api.example.com", 443, "/v1/x"),
        ),
        *(
            ("api.example.com", 443, target)
            for target in ("/", "/v", "/v10", "/v1x", "/V1/x", "//v1/x", "*", "")
        ),
        *(("api.example.com", 443, f"/v1/{rest}") for rest in ("../x", "./x", "a/..", "%2e%2e/x", "..;/x")),
        *(
            ("api.example.com", 443, f"/v1/{rest}")
            for rest in ("..%2fx", "..%5cx", "..\\x", "%252e/x", ".%3b/x")
        ),
        *(
            ("api.example.com", 443, f"/v1/{rest}")
            for rest in (
                "%c0%ae%c0%ae/x",
                "%e0%80%ae/x",
                "%u002e/x",
                ".%0d./x",
                ".%7f./x",
                "%",
                "%2",
                "%zz",
                "%ff",
            )
        ),
        ("api.example.com", 443, "/x/../v1/y"),
        ("api.example.com", 443, "https://api.example.com/v1/x"),
    ],
)
def test_a_request_elsewhere_is_not(host: str, port: int, target: str) -> None:
    assert not Destination("https://api.example.com/v1").covers(host, port, target)


@pytest.mark.parametrize(
    "text",
    [
        *("http://api.example.com", "ftp://x.example", "https://", "", "https://user@api.example.com"),
        *("https://api.example.com/?x", "https://api.example.com/#x", "https://api.example.com:0/", "a b"),
        *(
            "*",
            "*.com",
            "*.*.com",
            "a*.example.com",
            "https://api.example.com/a/../b",
            "https://h.example/%2e/",
        ),
    ],
)
def test_no_other_text_is_a_destination(text: str) -> None:
    with pytest.raises(Unmaskable):
        Destination(text)


def test_a_variable_names_another_destination_but_no_pattern() -> None:
    provider = Provider("p", ("K",), (), patterns=("k+",), from_env="URL")
    (found,) = provider.destinations({b"URL": b"https://own.example/v1/"})
    assert found.covers("own.example", 443, "/v1/x")
    for value in (b"", b"http://own.example", b"*.own.example", b"\xff.example"):
        with pytest.raises(Unmaskable):
            provider.destinations({b"URL": value})


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"patterns": ()}, "no patterns"),
        ({"destinations": ()}, "no destinations"),
        ({"patterns": ("[",)}, "a pattern cannot be used: it ends too early"),
        ({"variables": ("A B",)}, "variable"),
        ({"from_env": "A-B"}, "variable"),
        ({"header": "x-key"}, "need each other"),
        ({"auths": (Auth.HEADER,)}, "need each other"),
        ({"prefix": "K "}, "`prefix` needs `header`"),
        ({"auths": (Auth.HEADER,), "header": "Host"}, "cannot carry"),
        ({"auths": (Auth.HEADER,), "header": "a b"}, "cannot carry"),
        ({"auths": (Auth.HEADER,), "header": "x-key", "prefix": "K\r\n"}, "does not fit"),
    ],
)
def test_what_was_configured_is_checked(changed: dict[str, object], why: str) -> None:
    given = {"variables": ("K",), "destinations": ("a.example",), "patterns": ("k+",)} | changed
    with pytest.raises(Unmaskable, match=why):
        Provider("p", **given)  # type: ignore[arg-type]
