"""SOCKS 5 as a server hears it."""

from __future__ import annotations

import pytest

from execserver.egress.socks import (
    NO_METHOD,
    BadSocks,
    Command,
    Reply,
    failed,
    greeting_length,
    parse_request,
    request_length,
    succeeded,
)


def named(host: bytes, command: int = 1) -> bytes:
    return bytes((5, command, 0, 3, len(host))) + host + b"\x01\xbb"


def test_a_greeting_is_complete_with_all_methods() -> None:
    data = b"\x05\x02\x02\x00"
    assert [greeting_length(data[:cut]) for cut in range(4)] == [0] * 4
    assert greeting_length(data + b"more") == 4


@pytest.mark.parametrize(("data", "answer"), [(b"\x04", b""), (b"GET", b""), (b"\x05\x01\x02", NO_METHOD)])
def test_another_protocol_and_a_password_are_refused(data: bytes, answer: bytes) -> None:
    with pytest.raises(BadSocks) as refused:
        greeting_length(data)
    assert refused.value.answer == answer


@pytest.mark.parametrize(
    ("data", "host"),
    [
        (named(b"Example.COM."), "example.com"),
        (b"\x05\x01\x00\x01\x7f\x00\x00\x01\x01\xbb", "127.0.0.1"),
        (b"\x05\x01\x00\x04" + bytes(15) + b"\x01\x01\xbb", "::1"),
    ],
)
def test_a_request_is_read(data: bytes, host: str) -> None:
    assert [request_length(data[:cut]) for cut in range(len(data))] == [0] * len(data)
    assert request_length(data + b"x") == len(data)
    request = parse_request(data)
    assert (request.command, request.question.host, request.question.port) == (Command.CONNECT, host, 443)


@pytest.mark.parametrize(
    "host",
    [
        *(
            b"",
            b".",
            b"a\0b",
            b"blocked.example\0.allowed.example",
            b"a%b",
            b"a b",
            b"a/b",
            b"\xff",
            b"b\xc3\xbccher",
        ),
        *(b"fe80::1%lo", b"[fe80::1%25lo]", b"a" * 255),
    ],
)
def test_a_name_that_is_none_is_refused(host: bytes) -> None:
    with pytest.raises(BadSocks) as refused:
        parse_request(named(host))
    assert refused.value.answer == failed(Reply.GENERAL_FAILURE)


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        (b"\x04\x01\x00\x01", Reply.GENERAL_FAILURE),
        (b"\x05\x01\x01\x01", Reply.GENERAL_FAILURE),
        (b"\x05\x01\x00\x02x", Reply.ADDRESS_NOT_SUPPORTED),
    ],
)
def test_a_bad_request_is_refused(data: bytes, reply: Reply) -> None:
    with pytest.raises(BadSocks) as refused:
        request_length(data)
    assert refused.value.answer == failed(reply)


def test_an_unknown_command_is_refused() -> None:
    with pytest.raises(BadSocks) as refused:
        parse_request(named(b"a", command=9))
    assert refused.value.answer == bytes.fromhex("05070001000000000000")


def test_the_address_of_a_connection_is_told() -> None:
    assert succeeded("93.184.216.34", 443) == bytes.fromhex("050000015db8d82201bb")
    assert succeeded("::1", 1) == bytes.fromhex("05000004" + "00" * 15 + "01" + "0001")
