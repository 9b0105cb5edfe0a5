"""Where redirects lead; the rows are what the reference sends."""

from __future__ import annotations

import pytest

from execserver.http_client.redirects import UnfollowableRedirect, next_request
from execserver.http_client.request import PreparedRequest
from execserver.services.http.service import HttpService
from execserver.settings import Settings
from tests.support.http_peer import params


def request(url: str = "http://h/a/b?q#frag", **members: object) -> PreparedRequest:
    return HttpService(Settings(), {"TOKEN": "t"}).prepare(params(url, **members))


def followed(asked: PreparedRequest, status: int = 302, location: bytes = b"/n") -> PreparedRequest:
    following = next_request(asked, status, location)
    assert following is not None
    return following


@pytest.mark.parametrize(
    ("status", "method", "then", "keeps_body"),
    [
        (301, "POST", "GET", False),
        (302, "POST", "GET", False),
        (301, "PUT", "PUT", True),
        (302, "GET", "GET", True),
        (302, "FOO", "FOO", True),
        (303, "GET", "GET", False),
        (303, "PUT", "GET", False),
        (303, "HEAD", "HEAD", False),
        (307, "POST", "POST", True),
        (308, "DELETE", "DELETE", True),
    ],
)
def test_method_and_body(status: int, method: str, then: str, keeps_body: bool) -> None:
    headers = [("content-type", "t"), ("content-encoding", "e"), ("content-language", "l")]
    got = followed(request(method=method, body_base64=b"data", headers=headers), status)
    assert got.method == then
    assert got.body == (b"data" if keeps_body else b"")
    names = [name for name, _ in got.headers]
    if keeps_body:
        assert names == [b"content-type", b"content-encoding", b"content-language", b"accept", b"referer"]
    else:
        assert names == [b"accept", b"content-language", b"referer"]


@pytest.mark.parametrize("status", [200, 300, 304, 305, 306, 309, 400])
def test_other_statuses_are_answers(status: int) -> None:
    assert next_request(request(), status, b"/n") is None


@pytest.mark.parametrize(
    "location", [None, b"http://[", b"/a b", "/é".encode(), b"/\xe9", b'/"', b"http://a:b:c/"]
)
def test_a_location_that_is_no_uri_makes_the_redirect_the_answer(location: bytes | None) -> None:
    assert next_request(request(), 302, location) is None


@pytest.mark.parametrize("location", [b"ftp://x/", b"mailto:x"])
def test_a_location_of_another_scheme_cannot_be_followed(location: bytes) -> None:
    with pytest.raises(UnfollowableRedirect) as caught:
        next_request(request(), 302, location)
    assert caught.value.url == location.decode()


def test_the_referer_is_the_url_without_credentials_and_fragment() -> None:
    got = followed(request("http://u:p@h/a?q#f", headers=[("referer", "mine"), ("x", "1")]))
    assert got.headers.values(b"referer") == [b"http://h/a?q"]
    assert next(iter(got.headers))[0] == b"authorization"


@pytest.mark.parametrize(
    ("start", "location", "has_referer"),
    [
        ("https://h/", b"http://h/", False),
        ("https://h/", b"https://i/", True),
        ("http://h/", b"https://h/", True),
    ],
)
def test_the_referer_of_https_is_not_told_on_plain_text(
    start: str, location: bytes, has_referer: bool
) -> None:
    assert (b"referer" in followed(request(start), 302, location).headers) is has_referer


CREDENTIALS = ["authorization", "cookie", "proxy-authorization", "www-authenticate", "cookie2"]


@pytest.mark.parametrize("location", [b"http://other/", b"http://h:81/", b"//other/", b"https://h/"])
def test_another_host_or_port_gets_no_credentials(location: bytes) -> None:
    headers = [("x-one", "1"), *[(name, "secret") for name in CREDENTIALS], ("x-two", "2")]
    got = followed(request(headers=headers), 307, location)
    assert [name for name, _ in got.headers] == [b"x-one", b"accept", b"x-two", b"referer"]


def test_the_same_host_gets_them_again() -> None:
    got = followed(request(headers=[(name, "secret") for name in CREDENTIALS]), 307, b"http://h:80/z")
    assert {name for name, _ in got.headers} >= {name.encode() for name in CREDENTIALS}


def test_another_host_does_not_get_what_came_from_the_environment() -> None:
    from execserver.protocol.http import HttpHeader

    asked = params("http://h/")
    secret = HttpHeader(name="X-Api-Key", value="", value_env_var="TOKEN")
    plain = HttpHeader(name="x-plain", value="1")
    import msgspec

    prepared = HttpService(Settings(), {"TOKEN": "t"}).prepare(
        msgspec.structs.replace(asked, headers=(secret, plain))
    )
    assert followed(prepared, 302, b"/n").headers.values(b"x-api-key") == [b"t"]
    elsewhere = followed(prepared, 302, b"http://other/").headers
    assert b"x-api-key" not in elsewhere
    assert elsewhere.values(b"x-plain") == [b"1"]


def test_what_was_dropped_on_the_way_stays_dropped() -> None:
    away = followed(request(headers=[("cookie", "c")]), 307, b"http://other/")
    assert b"cookie" not in followed(away, 307, b"http://h/").headers


def test_a_given_host_stays() -> None:
    got = followed(request(headers=[("host", "h.test")]), 302, b"http://other/z")
    assert (
        got.encode() == b"GET /z HTTP/1.1\r\nhost: h.test\r\naccept: */*\r\nreferer: http://h/a/b?q\r\n\r\n"
    )
