"""The name in the first message of a TLS client."""

from __future__ import annotations

import ssl

import pytest

from execserver.egress.tls_hello import MAX_HELLO_BYTES, MAX_RECORDS, BadHello, hello_of, server_name


def hello(name: str | None) -> bytes:
    """Return what a real client sends first."""
    context = ssl.create_default_context()
    context.check_hostname = False
    out = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def records(data: bytes, size: int) -> bytes:
    """Return the message of one record in records of so many bytes."""
    message = data[5:]
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2) + piece for piece in pieces)


def name_in(data: bytes) -> str | None:
    found = hello_of(data)
    assert found
    return server_name(found)


@pytest.mark.parametrize(("name", "found"), [("A.Example", "a.example"), (None, None)])
def test_the_name_of_a_real_client_is_found(name: str | None, found: str | None) -> None:
    assert name_in(hello(name)) == found


@pytest.mark.parametrize("size", [1, 3, 40, 100])
def test_the_message_may_come_in_many_records(size: int) -> None:
    assert name_in(records(hello("a.example"), size)) == "a.example"


def test_an_incomplete_message_is_waited_for() -> None:
    data = hello("a.example")
    assert [hello_of(data[:cut]) for cut in range(len(data))] == [None] * len(data)


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-x\r\n", b"GET / HTTP/1.1\r\n", b"\x16\x04", b"\x15\x05\x01", b"\x19\x03\x01"]
)
def test_other_protocols_are_no_tls(data: bytes) -> None:
    assert hello_of(data) == b""


def extension(*names: bytes) -> bytes:
    content = b"".join(b"\x00" + len(name).to_bytes(2) + name for name in names)
    inner = len(content).to_bytes(2) + content
    return b"\x00\x00" + len(inner).to_bytes(2) + inner


def made(extensions: bytes) -> bytes:
    body = b"\x03\x03" + bytes(32) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00"
    body += len(extensions).to_bytes(2) + extensions
    return b"\x01" + len(body).to_bytes(3) + body


def test_a_message_that_is_made_by_hand_is_read() -> None:
    assert server_name(made(extension(b"a.example"))) == "a.example"
    assert server_name(made(b"")) is None


@pytest.mark.parametrize(
    "extensions",
    [
        extension(b"a.example", b"b.example"),
        extension(b"a.example") + extension(b"b.example"),
        extension(b"a\0b"),
        extension(b"\xff"),
        extension(b""),
        extension(b"a.example")[:-1],
        b"\x00",
    ],
)
def test_a_message_with_two_names_or_none_that_is_one_is_refused(extensions: bytes) -> None:
    with pytest.raises(BadHello):
        server_name(made(extensions))


def test_a_message_without_end_and_one_with_something_between_are_refused() -> None:
    too_long = b"\x01" + MAX_HELLO_BYTES.to_bytes(3)
    with pytest.raises(BadHello):
        hello_of(b"\x16\x03\x01\x00\x04" + too_long)
    with pytest.raises(BadHello):
        hello_of(b"\x16\x03\x01\x00\x01\x01" + b"\x17\x03\x03\x00\x01x")


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(b"\x15\x03\x01\x00\x02\x01\x5a", id="a warning, which some servers skip"),
        pytest.param(b"\x14\x03\x03\x00\x01\x01", id="a change of ciphers"),
        pytest.param(b"\x17\x03\x03\x00\x00", id="empty data"),
        pytest.param(b"\x16\x03\x01\x00\x00", id="an empty record"),
        pytest.param(b"\x16\x03\x01\x00\x04\x00\x00\x00\x00", id="another message"),
    ],
)
def test_nothing_comes_before_the_message(before: bytes) -> None:
    with pytest.raises(BadHello):
        hello_of(before + hello("a.example"))


def test_an_empty_record_inside_of_the_message_is_refused() -> None:
    with pytest.raises(BadHello):
        hello_of(b"\x16\x03\x01\x00\x01\x01" + b"\x16\x03\x01\x00\x00")


def test_a_message_in_very_many_records_is_refused_before_it_takes_time() -> None:
    begun = b"\x01\x00\x7f\x00" + bytes(MAX_RECORDS)
    many = b"".join(b"\x16\x03\x01\x00\x01" + begun[at : at + 1] for at in range(MAX_RECORDS + 1))
    assert hello_of(many[: 6 * MAX_RECORDS]) is None
    with pytest.raises(BadHello, match="too many"):
        hello_of(many)
