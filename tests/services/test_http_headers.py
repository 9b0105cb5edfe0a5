"""Header lines of requests: order, repeats, checks in the contract's words, values from the environment."""

from __future__ import annotations

import pytest

from execserver.protocol.errors import InvalidParams
from execserver.protocol.http import HttpHeader
from execserver.services.http.contract_headers import checked_headers, secret_names, shown_headers


def header(name: str, value: str = "", variable: str | None = None) -> HttpHeader:
    if variable is None:
        return HttpHeader(name=name, value=value)
    return HttpHeader(name=name, value=value, value_env_var=variable)


def lines(*given: HttpHeader, credentials: tuple[bytes, bytes] | None = None) -> list[bytes]:
    return checked_headers(credentials, given, {}).encode().split(b"\r\n")[:-1]


def refusal(given: HttpHeader, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(InvalidParams) as caught:
        checked_headers(None, [given], environ or {})
    return caught.value.message


def test_names_are_lower_case_and_repeats_stand_at_the_first_place() -> None:
    got = lines(header("X-A", "1"), header("b", "2"), header("x-a", "3"))
    assert got == [b"x-a: 1", b"x-a: 3", b"b: 2", b"accept: */*"]


def test_a_given_accept_stays_alone() -> None:
    assert lines(header("Accept", "a"), header("x"), header("ACCEPT", "b")) == [
        b"accept: a",
        b"accept: b",
        b"x: ",
    ]


def test_credentials_of_the_url_come_first_and_give_way_to_a_given_authorization() -> None:
    assert lines(header("x", "1"), credentials=(b"user", b"pw")) == [
        b"authorization: Basic dXNlcjpwdw==",
        b"x: 1",
        b"accept: */*",
    ]
    got = lines(header("x", "1"), header("Authorization", "Bearer z"), credentials=(b"u", b"p"))
    assert got == [b"authorization: Bearer z", b"x: 1", b"accept: */*"]


def test_values_are_sent_as_they_are() -> None:
    assert lines(header("a", "  x\ty "), header("b", "é")) == [
        b"a:   x\ty ",
        "b: é".encode(),
        b"accept: */*",
    ]


@pytest.mark.parametrize("name", ["", "bad name", "a:", "é", "a\n", 'a"', "(", "a" * 65_536])
def test_bad_names_are_refused(name: str) -> None:
    assert refusal(header(name)) == "http/request header name is invalid: invalid HTTP header name"


@pytest.mark.parametrize("value", ["a\nb", "\r", "\0", "\x7f", "\x1f", "\n x"])
def test_control_characters_in_values_are_refused(value: str) -> None:
    message = "http/request header value is invalid for X: failed to parse header value"
    assert refusal(header("X", value)) == message


def test_a_value_may_end_with_a_variable_of_the_server() -> None:
    given = [
        header("A", "Bearer ", "MY_TOKEN"),
        header("b", "1"),
        HttpHeader(name="c", value="2", value_env_var=None),
    ]
    headers = checked_headers(None, given, {"MY_TOKEN": "t"})
    assert headers.encode() == b"a: Bearer t\r\nb: 1\r\nc: 2\r\naccept: */*\r\n"
    assert secret_names(given) == {b"a"}


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("NOPE", "http/request header a requires executor environment variable NOPE"),
        ("EMPTY", "http/request header a requires a non-empty executor environment variable EMPTY"),
        ("NEWLINE", "http/request header value is invalid for a: failed to parse header value"),
        ("CODEX_API_KEY", "http/request header a cannot use executor environment variable CODEX_API_KEY"),
        ("openai_api_key", "http/request header a cannot use executor environment variable openai_api_key"),
        (
            "AWS_SESSION_TOKEN",
            "http/request header a cannot use executor environment variable AWS_SESSION_TOKEN",
        ),
    ],
)
def test_variables_that_a_header_may_not_have(variable: str, message: str) -> None:
    environ = {
        "EMPTY": "",
        "NEWLINE": "a\nb",
        "CODEX_API_KEY": "k",
        "openai_api_key": "k",
        "AWS_SESSION_TOKEN": "t",
    }
    assert refusal(header("a", "", variable), environ) == message


def test_a_variable_is_looked_up_after_the_name_and_before_the_value() -> None:
    assert "header name is invalid" in refusal(header("b d", "", "NOPE"))
    assert "requires executor environment variable" in refusal(header("a", "\n", "NOPE"))


def test_headers_are_refused_in_their_order() -> None:
    with pytest.raises(InvalidParams, match="invalid for a"):
        checked_headers(None, [header("a", "\n"), header("b", "", "NOPE")], {})


def test_response_headers_are_grouped_and_those_not_visible_are_dropped() -> None:
    received = [
        (b"a", b"1"),
        (b"b", b"\xc3\xa9"),
        (b"c", b"x\ty ~"),
        (b"a", b"2"),
        (b"d", b""),
        (b"e", b"\x7f"),
        (b"c", b"3"),
    ]
    got = [(each.name, each.value) for each in shown_headers(received)]
    assert got == [("a", "1"), ("a", "2"), ("c", "x\ty ~"), ("c", "3"), ("d", "")]
