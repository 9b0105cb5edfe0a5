"""Long base64 taken out of a message: the outcome is what the decoder alone makes of it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.client.errors import ProtocolViolation
from execserver.client.rules import wire
from execserver.protocol import base64, envelope, lifting
from execserver.protocol.decoding import decode_params
from execserver.protocol.envelope import MalformedMessage, Notification, Request, Response
from execserver.protocol.errors import InvalidParams
from execserver.protocol.files import FsReadBlockResponse
from execserver.protocol.lifting import Lifted
from execserver.protocol.methods import METHODS
from execserver.protocol.own_methods import PORT_BYTES, PORT_DATA
from execserver.protocol.ports import PortDataNotification, PortDataParams
from execserver.protocol.process import WriteParams
from execserver.protocol.process_methods import PROCESS_WRITE
from execserver.protocol.templates import PortTemplates

LONG = bytes(range(256)) * 40
TEXT = base64.encode(LONG).decode()
WRITE = '{"id":7,"method":"process/write","params":{"processId":"p","chunk":"%s","writeId":"w"}}'


def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifting, "_lifted", lambda members, message: None)


def outcome_of_request(text: bytes) -> object:
    try:
        request = envelope.parse_message(text)
    except MalformedMessage as error:
        return error.reason
    if not isinstance(request, Request) or request.method not in METHODS:
        return request
    try:
        return request.id, request.method, decode_params(METHODS[request.method], request.params)
    except InvalidParams as error:
        return error.message


def outcome_of_reply(text: bytes) -> object:
    try:
        reply = wire.decode_message(text)
        if isinstance(reply, Response):
            return reply.id, wire.decode(FsReadBlockResponse, reply.result, "result")
        if isinstance(reply, Notification):
            return reply.method, wire.decode(PortDataNotification, reply.params, "params")
    except ProtocolViolation as error:
        return str(error)
    return reply


def test_the_base64_of_a_request_is_not_given_to_the_decoder() -> None:
    request = envelope.parse_message((WRITE % TEXT).encode())
    assert isinstance(request, Request)
    assert isinstance(request.params, Lifted)
    assert TEXT.encode() not in request.params.message
    assert decode_params(PROCESS_WRITE, request.params) == WriteParams(
        process_id="p", chunk=LONG, write_id="w"
    )


def test_the_size_of_params_counts_the_base64_decoded() -> None:
    request = envelope.parse_message((WRITE % TEXT).encode())
    assert isinstance(request, Request)
    assert len(request.params) == len(LONG) + len('{"processId":"p","chunk":"","writeId":"w"}')


def test_what_this_projects_clients_and_server_write_is_taken_so() -> None:
    params = PortDataParams(port_id="ab/1", offset=2**64 - 1, chunk=LONG, eof=True)
    request = envelope.parse_message(wire.encode_request(3, PORT_DATA.name, params))
    assert isinstance(request, Request)
    assert isinstance(request.params, Lifted)
    assert decode_params(PORT_DATA, request.params) == params
    note = wire.decode_message(b"".join(PortTemplates("ab/1").data(9, LONG, eof=False)))
    assert isinstance(note, Notification)
    assert isinstance(note.params, Lifted)
    assert wire.decode(PortDataNotification, note.params, PORT_BYTES.name) == PortDataNotification(
        port_id="ab/1", offset=9, chunk=LONG, eof=False
    )
    answer = wire.decode_message(
        envelope.encode_result("5", msgspec.Raw(b'{"chunk":"%b","eof":true}' % TEXT.encode()))
    )
    assert isinstance(answer, Response)
    assert isinstance(answer.result, Lifted)
    assert wire.decode(FsReadBlockResponse, answer.result, "x") == FsReadBlockResponse(chunk=LONG, eof=True)


def test_plain_values_are_the_whole_text() -> None:
    request = envelope.parse_message((WRITE % TEXT).encode())
    assert isinstance(request, Request)
    assert msgspec.json.decode(bytes(request.params)) == {"processId": "p", "chunk": TEXT, "writeId": "w"}


@pytest.mark.parametrize(
    "params",
    [
        f'{{"processId":"p","chunk":"{TEXT}","chunk":"aGk="}}',
        f'{{"processId":"p","chunk":"{TEXT}","chunk":""}}',
        f'{{"processId":"p","chunk":"aGk=","chunk":"{TEXT}"}}',
        f'{{"processId":"p","other":{{"chunk":"{TEXT}"}},"chunk":""}}',
        f'{{"processId":"p","chunk":"{TEXT}","other":{{"chunk":"aGk="}}}}',
        f'{{"processId":"a\\",\\"chunk\\":\\"b","chunk":"{TEXT}"}}',
        f'{{"processId":"p","chunk":"","chunk\\u0000":"{TEXT}"}}',
        f'{{"processId":"p","chunk":"{TEXT[:-4]}_-__"}}',
        f'{{"processId":"p","chunk":"{TEXT}A"}}',
        f'{{"processId":"p","chunk":"{TEXT[:-1]}"}}',
        f'{{"processId":"p","chunk":"{TEXT}\\n"}}',
        f'{{"processId":"p","chunk":"{TEXT}\n"}}',
        f'{{"processId":"p","chunk":"{TEXT}é"}}',
        f'{{"processId":"p","chunk":"{TEXT}\\u0041"}}',
        f'{{"processId":5,"chunk":"{TEXT}"}}',
        f'{{"chunk":"{TEXT}"}}',
        f'{{"processId":"p","chunk":"{TEXT}","writeId":01}}',
        f'{{"processId":"p","chunk":"{TEXT}","writeId":"w",}}',
        f'{{"processId":"p","chunk":"{TEXT}"',
        f'{{"processId":"p","chunk":"{TEXT}"}}}},"chunk":"x"}}',
        f'{{"processId":"{"p" * 5000}","chunk":""}}',
        f'{{"processId":"{"p" * 5000}","chunk":"aGk="}}',
    ],
)
@pytest.mark.parametrize("method", ["process/write", "fs/close", "fs/writeFile", "unknown"])
@pytest.mark.parametrize(
    "head", ['{"id":7,"method"', '{"id":"x","method"', '{"id":1.5,"method"', '{"method"']
)
def test_the_outcome_is_that_of_the_decoder(
    monkeypatch: pytest.MonkeyPatch, head: str, method: str, params: str
) -> None:
    text = f'{head}"method":"{method}","params":{params}}}'.encode()
    found = outcome_of_request(text)
    plain(monkeypatch)
    wanted = outcome_of_request(text)
    if isinstance(wanted, Notification) and isinstance(found, Notification):
        assert (found.method, bytes(found.params)) == (wanted.method, bytes(wanted.params))
    elif isinstance(wanted, Request) and isinstance(found, Request):
        assert (found.id, found.method, bytes(found.params)) == (
            wanted.id,
            wanted.method,
            bytes(wanted.params),
        )
    else:
        assert found == wanted


@given(
    st.sampled_from(["{", '{"id":5,', '{"id":"a b",', '{"id":null,', "[", '{"method":"port/bytes",']),
    st.sampled_from(['"result":', '"method":"port/bytes","params":', '"error":', '"result":{},"result":']),
    st.lists(
        st.sampled_from(
            [
                *(
                    f'"chunk":"{TEXT}"',
                    '"chunk":"aGk="',
                    '"eof":true',
                    '"eof":false',
                    '"offset":3',
                    '"eof":1',
                ),
                *('"portId":"p"', '"portId":"\\n"', '"more":[]', '"more":null', f'"dataBase64":"{TEXT}"', ""),
            ]
        ),
        max_size=6,
    ),
    st.sampled_from(["}}", "}", "}} ", '},"id":6}', '},"method":"x"}', "}}}"]),
)
def test_replies_of_any_shape_are_decoded_as_without_it(
    begin: str, kind: str, members: list[str], end: str
) -> None:
    text = f"{begin}{kind}{{{','.join(members)}{end}".encode()
    with pytest.MonkeyPatch.context() as patched:
        found = outcome_of_reply(text)
        plain(patched)
        assert found == outcome_of_reply(text)
