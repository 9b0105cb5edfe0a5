"""The bytes of a request on the wire, as the reference writes them."""

from __future__ import annotations

import pytest

from execserver.services.http.service import HttpService
from execserver.settings import Settings
from tests.support.http_peer import params


def wire(url: str = "http://h/p?q#f", **members: object) -> bytes:
    return HttpService(Settings(), {}).prepare(params(url, **members)).encode()


def test_a_plain_request() -> None:
    assert wire() == b"GET /p?q HTTP/1.1\r\naccept: */*\r\nhost: h\r\n\r\n"


def test_a_body_comes_with_its_length_behind_all_other_headers() -> None:
    got = wire(method="POST", body_base64=b"data", headers=[("X-A", "1"), ("Content-Type", "text/plain")])
    assert got == (
        b"POST /p?q HTTP/1.1\r\nx-a: 1\r\ncontent-type: text/plain\r\naccept: */*\r\nhost: h\r\n"
        b"content-length: 4\r\n\r\ndata"
    )


@pytest.mark.parametrize("body", [None, b""])
def test_no_body_has_no_length(body: bytes | None) -> None:
    assert wire(method="POST", body_base64=body) == b"POST /p?q HTTP/1.1\r\naccept: */*\r\nhost: h\r\n\r\n"


def test_the_method_keeps_its_case() -> None:
    assert wire(method="get").startswith(b"get /p?q HTTP/1.1\r\n")


def test_a_given_host_keeps_its_place() -> None:
    got = wire(headers=[("Host", "example.test"), ("User-Agent", "ua")])
    assert got == b"GET /p?q HTTP/1.1\r\nhost: example.test\r\nuser-agent: ua\r\naccept: */*\r\n\r\n"


def test_the_host_has_the_port_where_it_is_not_the_schemes_own() -> None:
    assert b"\r\nhost: h\r\n" in wire("http://h:80/")
    assert b"\r\nhost: h:443\r\n" in wire("http://h:443/")
    assert b"\r\nhost: [::1]:8\r\n" in wire("http://[::1]:8/")


def test_credentials_of_the_url_become_a_header() -> None:
    got = wire("http://user:pw@h/")
    assert got == b"GET / HTTP/1.1\r\nauthorization: Basic dXNlcjpwdw==\r\naccept: */*\r\nhost: h\r\n\r\n"


@pytest.mark.parametrize("lengths", [["3"], ["9"], ["x"], ["4", "4"]])
def test_a_given_length_gives_way_to_the_true_one(lengths: list[str]) -> None:
    headers = [("Content-Length", length) for length in lengths]
    got = wire(method="POST", body_base64=b"data", headers=headers)
    assert got == b"POST /p?q HTTP/1.1\r\ncontent-length: 4\r\naccept: */*\r\nhost: h\r\n\r\ndata"


def test_a_given_length_without_a_body_is_zero() -> None:
    assert b"\r\ncontent-length: 0\r\n" in wire(method="POST", headers=[("content-length", "9")])


@pytest.mark.parametrize(
    ("given", "sent"), [("chunked", "chunked"), ("gzip, Chunked", "gzip, Chunked"), ("gzip", "gzip, chunked")]
)
def test_a_given_transfer_encoding_is_kept(given: str, sent: str) -> None:
    got = wire(
        method="POST", body_base64=b"data", headers=[("Transfer-Encoding", given), ("content-length", "4")]
    )
    head = f"POST /p?q HTTP/1.1\r\ntransfer-encoding: {sent}\r\nhost: h\r\naccept: */*\r\n\r\n"
    assert got == head.encode() + b"4\r\ndata\r\n0\r\n\r\n"


def test_a_transfer_encoding_without_a_body_is_not_sent() -> None:
    assert b"transfer-encoding" not in wire(headers=[("transfer-encoding", "chunked")])


def test_connect_asks_for_the_authority() -> None:
    assert wire("http://h:81/p", method="CONNECT").startswith(b"CONNECT h:81 HTTP/1.1\r\n")


def test_the_form_for_a_proxy() -> None:
    request = HttpService(Settings(), {}).prepare(params("http://u:p@h:81/p?q#f", body_base64=b"x"))
    assert request.encode(absolute=True, proxy_authorization=b"Basic eA==") == (
        b"GET http://h:81/p?q HTTP/1.1\r\nauthorization: Basic dTpw\r\naccept: */*\r\n"
        b"proxy-authorization: Basic eA==\r\nhost: h:81\r\ncontent-length: 1\r\n\r\nx"
    )
