"""The binary form of a message means what the message with base64 means; nothing else is taken for one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.client.rules import wire
from execserver.protocol import base64, envelope, files
from execserver.protocol.decoding import decode_params
from execserver.protocol.envelope import MalformedMessage, Request
from execserver.protocol.errors import InvalidParams
from execserver.protocol.methods import METHODS
from execserver.protocol.ports import PortConnectParams, PortDataNotification, PortDataParams
from execserver.protocol.process import WriteParams
from execserver.protocol.templates import PortTemplates

LONG = bytes(range(256)) * 16
IDS = st.text(st.sampled_from('abc/ -.~!#[]"\\\n\x7fé\0'), max_size=260)
PARAMS = st.one_of(
    st.builds(PortDataParams, port_id=IDS, offset=st.integers(0, 2**64 - 1), chunk=st.just(LONG)),
    st.builds(WriteParams, process_id=IDS, chunk=st.just(LONG), write_id=st.none() | IDS),
    st.builds(PortConnectParams, port_id=IDS, host=IDS, port=st.integers(0, 65535), chunk=st.just(LONG)),
    st.builds(files.FsWriteBlockParams, handle_id=IDS, chunk=st.just(LONG)),
)


def outcome(message: bytes) -> object:
    request = envelope.parse_message(message)
    assert isinstance(request, Request)
    if request.method not in METHODS:
        return request.id, request.method, msgspec.json.decode(bytes(request.params))
    try:
        return request.id, request.method, decode_params(METHODS[request.method], request.params)
    except InvalidParams as error:
        return request.id, request.method, error.message


@given(
    PARAMS,
    st.sampled_from(["port/data", "process/write", "port/open", "fs/writeBlock", "fs/close", "unknown"]),
    st.binary(max_size=9),
)
def test_both_forms_mean_the_same(params: msgspec.Struct, method: str, more: bytes) -> None:
    params = msgspec.structs.replace(params, chunk=LONG + more)
    plain = wire.encode_request(7, method, params)
    binary = wire.encode_request(7, method, params, binary=True)
    assert outcome(binary) == outcome(plain)
    assert binary == plain or (binary[:1] == b"\0" and len(binary) < len(plain) - len(LONG) // 4)


def test_what_clients_send_has_that_form() -> None:
    params = PortDataParams(port_id="ab/1", offset=2**64 - 1, chunk=LONG, eof=True)
    text = b'{"id":3,"method":"port/data","params":{"portId":"ab/1","offset":%d,"chunk":"","eof":true}}'
    text %= 2**64 - 1
    sent = wire.encode_request(3, "port/data", params, binary=True)
    assert sent == b"\0" + len(text).to_bytes(4, "big") + text + LONG


@pytest.mark.parametrize(
    "params",
    [
        PortDataParams(port_id='"', offset=0, chunk=LONG),
        PortDataParams(port_id="é", offset=0, chunk=LONG),
        PortDataParams(port_id="p" * 257, offset=0, chunk=LONG),
        PortDataParams(port_id="p", offset=0, chunk=LONG[:-1]),
    ],
)
def test_what_has_no_such_form_goes_with_base64(params: PortDataParams) -> None:
    assert wire.encode_request(1, "x", params, binary=True) == wire.encode_request(1, "x", params)


def binary(text: bytes, data: bytes = LONG, length: int | None = None) -> bytes:
    return b"\0" + (len(text) if length is None else length).to_bytes(4, "big") + text + data


GOOD = b'{"id":1,"method":"port/data","params":{"portId":"p","offset":0,"chunk":""}}'
BAD = {
    "a JSON text that is cut off": binary(GOOD, length=len(GOOD) + len(LONG) + 1),
    "the longest length": binary(GOOD, length=2**32 - 1),
    "a length that ends within the text": binary(GOOD, length=len(GOOD) - 1),
    "no text": binary(b""),
    "a text with white space": binary(GOOD.replace(b",", b", ", 1)),
    "a chunk in both places": binary(GOOD.replace(b'""', b'"aGk="')),
    "two chunks": binary(GOOD.replace(b'"chunk":""', b'"chunk":"","chunk":"aGk="')),
    "no chunk": binary(GOOD.replace(b',"chunk":""', b"")),
    "a chunk of another name": binary(GOOD.replace(b"chunk", b"dataBase64")),
    "a chunk that is null": binary(GOOD.replace(b'""', b"null")),
    "a chunk deeper inside": binary(b'{"id":1,"method":"x","params":{"a":{"chunk":""}}}'),
    "a batch": binary(b"[" + GOOD + b"]"),
    "another first byte": b"\1" + binary(GOOD)[1:],
    "a short message": binary(GOOD, b"hi"),
}


@pytest.mark.parametrize("message", BAD.values(), ids=BAD)
def test_all_else_is_malformed_as_text_that_is_no_json(message: bytes) -> None:
    with pytest.raises(MalformedMessage) as caught:
        envelope.parse_message(message)
    assert caught.value.reason == "expected value at line 1 column 1"


@given(st.binary(max_size=200), st.binary(max_size=40), st.integers(0, 200))
def test_no_bytes_do_harm(begin: bytes, middle: bytes, length: int) -> None:
    message = b"\0" + length.to_bytes(4, "big") + begin + GOOD + middle + LONG
    try:
        assert isinstance(envelope.parse_message(message), Request)
    except MalformedMessage:
        pass


def test_bytes_may_be_any_number_and_are_no_text() -> None:
    data = b'"}}\xff' * 2000
    assert outcome(binary(GOOD, data)) == (1, "port/data", PortDataParams(port_id="p", offset=0, chunk=data))


def test_a_request_in_that_form_can_be_asked_again_with_base64() -> None:
    request = envelope.parse_message(binary(GOOD))
    assert isinstance(request, Request)
    again = envelope.encode_again(request, bytes(request.params))
    assert (again[:1], outcome(again)) == (b"{", outcome(binary(GOOD)))


def test_a_server_may_answer_in_that_form() -> None:
    text = b'{"method":"port/bytes","params":{"portId":"p","offset":0,"chunk":"","eof":false}}'
    note = wire.decode_message(binary(text))
    assert isinstance(note, envelope.Notification)
    assert msgspec.json.decode(bytes(note.params)) == {
        "portId": "p",
        "offset": 0,
        "eof": False,
        "chunk": base64.encode(LONG).decode(),
    }


@given(IDS, st.integers(0, 2**63), st.binary(max_size=5))
def test_forwarded_bytes_are_the_same_in_both_forms(port_id: str, offset: int, more: bytes) -> None:
    templates, data = PortTemplates(port_id), LONG + more
    if not templates.have_binary_form:
        assert set(port_id) & set('"\\\n\x7fé\0') or len(port_id) > 256
        return
    both = (templates.data(offset, data, eof=False), templates.in_binary(offset, data))
    notes = [wire.decode_message(b"".join(parts)) for parts in both]
    found = [wire.decode(PortDataNotification, note.params, "x") for note in notes]  # type: ignore[union-attr]
    assert found == [PortDataNotification(port_id=port_id, offset=offset, chunk=data, eof=False)] * 2
