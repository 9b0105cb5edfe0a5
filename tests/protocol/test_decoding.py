from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from execserver.protocol import decoding
from execserver.protocol.decoding import decode_params
from execserver.protocol.errors import InvalidParams
from execserver.protocol.method import Method
from execserver.protocol.methods import (
    ENVIRONMENT_INFO,
    FS_CANONICALIZE,
    FS_READ_BLOCK,
    FS_WRITE_FILE,
    HTTP_REQUEST,
    INITIALIZE,
    METHODS,
    PROCESS_OUTPUT,
    PROCESS_READ,
    PROCESS_SIGNAL,
    PROCESS_START,
    PROCESS_WRITE,
)
from execserver.protocol.paths import PathUri
from execserver.protocol.process import ExecOutputStream, ProcessSignal
from execserver.protocol.session import NoParams
from tests.protocol.recorded import data_lines, decode_error, exchanges, without_member
from tests.protocol.strategies import one_in

# Answered with -32602 by the reference server after the params were decoded.
DOMAIN_CHECKS = (
    *(
        "argv must not be empty",
        "writeId must not be empty",
        "cwd URI `",
        "sandbox cwd URI `",
        "http/request ",
    ),
    *(
        "sandbox workspace root URI `",
        "invalid sandbox permission path URI: ",
        "failed to prepare process sandbox: ",
    ),
)
TRANSCRIPTS = [
    "03-process-start",
    "04-process-io",
    "11-misc",
    "12-percent-encoding",
    "13-decode-errors",
    "15-check-order",
]


def raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def expected_error(error: dict[str, object] | None) -> str | None:
    if error is None or error["code"] != -32602 or str(error["message"]).startswith(DOMAIN_CHECKS):
        return None
    return str(error["message"])


def is_deliberate(ours: str | None, theirs: str | None) -> bool:
    """Tell whether a difference is wanted: more signals, writes without a writeId, methods of our own."""
    return (
        (theirs or "").endswith("expected `interrupt`")
        or theirs in ("missing field `writeId`", "invalid type: null, expected a string")
        or (ours or "").startswith(("missing field `rows`", "missing field `options`"))
        or "{TMP}" in (ours or "")
    )


@pytest.mark.parametrize("transcript", TRANSCRIPTS)
def test_recorded_requests_get_the_recorded_decode_errors(transcript: str) -> None:
    differences = []
    for exchange in exchanges(f"{transcript}.0.142.0"):
        if "{CUT" in exchange.text or (exchange.error or {}).get("code") == -32601:
            continue
        ours, theirs = decode_error(exchange.text), expected_error(exchange.error)
        if (None if ours is None else without_member(ours)) != theirs and not is_deliberate(ours, theirs):
            differences.append((exchange.text, ours, theirs))
    assert differences == []


A_UUID = "0b6b2b1e-6f0c-4f0e-8f59-1f0c5a3f7a11"


def test_the_newest_contracts_requests_are_understood() -> None:
    refused = {
        ours
        for exchange in exchanges("10-beyond-target.0.169.0")
        if METHODS.get(msgspec.json.decode(exchange.text)["method"]) and exchange.error is None
        if (ours := decode_error(exchange.text.replace("{UUID}", A_UUID))) is not None
    }
    assert refused == set()


def test_everything_the_real_clients_send_is_understood() -> None:
    requests = [request for request in data_lines("real_client_requests.jsonl") if "id" in request]
    known = [request for request in requests if request["method"] in METHODS]
    assert {request["method"] for request in requests} <= set(METHODS)
    assert len(known) > 35
    assert [
        error for request in known if (error := decode_error(msgspec.json.encode(request).decode()))
    ] == []


@pytest.mark.parametrize("params", ["null", "{}"])
def test_methods_without_params_take_null_and_an_empty_object(params: str) -> None:
    assert decode_params(ENVIRONMENT_INFO, raw(params)) == NoParams()


@pytest.mark.parametrize(("params", "kind"), [('{"x":1}', "map"), ("5", "number"), ("[]", "sequence")])
def test_methods_without_params_take_nothing_else(params: str, kind: str) -> None:
    with pytest.raises(InvalidParams, match=f"invalid type: {kind}, expected unit"):
        decode_params(ENVIRONMENT_INFO, raw(params))


def test_missing_params_are_null_for_a_method_with_params() -> None:
    with pytest.raises(InvalidParams, match="invalid type: null, expected struct InitializeParams"):
        decode_params(INITIALIZE, raw("null"))


def test_paths_bytes_and_enums_are_decoded() -> None:
    start = decode_params(
        PROCESS_START, raw('{"processId":"p","argv":["x"],"cwd":"/a/./b","env":{},"tty":true}')
    )
    assert start.cwd == PathUri.parse("file:///a/b")
    assert (start.argv, start.env, start.pipe_stdin, start.sandbox) == (("x",), {}, False, None)
    write = decode_params(PROCESS_WRITE, raw('{"processId":"p","chunk":"aGk=","writeId":"1"}'))
    assert (write.chunk, type(write.chunk), write.write_id) == (b"hi", bytes, "1")
    assert (
        decode_params(PROCESS_SIGNAL, raw('{"processId":"p","signal":"SIGHUP"}')).signal is ProcessSignal.HUP
    )
    output = decode_params(PROCESS_OUTPUT, raw('{"processId":"p","seq":1,"stream":"pty","chunk":""}'))
    assert (output.stream, output.chunk) == (ExecOutputStream.PTY, b"")


def test_the_content_of_a_file_is_left_as_text() -> None:
    assert decode_params(FS_WRITE_FILE, raw('{"path":"/x","dataBase64":"*"}')).data_base64 == "*"


def test_a_write_of_an_older_contract_has_no_write_id() -> None:
    assert decode_params(PROCESS_WRITE, raw('{"processId":"p","chunk":""}')).write_id is None


@pytest.mark.parametrize("number", ["18446744073709551616", "1e3", "1.0", "-1", "9" * 400])
def test_numbers_outside_64_bits_are_refused(number: str) -> None:
    with pytest.raises(InvalidParams, match=r"^invalid number \(in `offset`\)$"):
        decode_params(FS_READ_BLOCK, raw(f'{{"handleId":"h","len":1,"offset":{number}}}'))


def test_the_largest_number_and_minus_zero_are_accepted() -> None:
    read = decode_params(PROCESS_READ, raw('{"processId":"p","afterSeq":18446744073709551615,"waitMs":-0}'))
    assert (read.after_seq, read.wait_ms) == (2**64 - 1, 0)


def test_http_headers_keep_order_and_repeats() -> None:
    params = '{"method":"GET","url":"u","requestId":"r","headers":[{"name":"b","value":"1"},["a","2",null]]}'
    headers = decode_params(HTTP_REQUEST, raw(params)).headers
    assert [(header.name, header.value) for header in headers] == [("b", "1"), ("a", "2")]


def test_bytes_that_are_not_utf_8_are_typed_errors() -> None:
    data = msgspec.Raw(b'"\x80"')
    for method in METHODS.values():
        with pytest.raises(InvalidParams):
            decode_params(method, data)


@pytest.mark.parametrize("name", sorted(METHODS))
@settings(max_examples=one_in(2))
@given(
    data=st.binary(max_size=60) | st.from_regex(r'\{"(processId|path|handleId)":[^}]{0,20}\}').map(str.encode)
)
def test_any_params_give_a_record_or_a_typed_error(name: str, data: bytes) -> None:
    with contextlib.suppress(InvalidParams):
        assert isinstance(decode_params(METHODS[name], msgspec.Raw(data)), METHODS[name].params)


def test_an_error_in_one_of_several_contexts_says_in_which() -> None:
    root = {"id": "", "path": "file:///"}
    params = {"roots": [root, {**root, "sandbox": 5}]}
    with pytest.raises(InvalidParams, match=r"\(in `roots\[1\].sandbox`\)$"):
        decode_params(METHODS["capabilityRoots/discoverV1"], msgspec.Raw(msgspec.json.encode(params)))


def test_careful_decoding_is_loaded_only_when_it_is_needed() -> None:
    program = (
        "import sys, msgspec\n"
        "from execserver.protocol.decoding import decode_params\n"
        "from execserver.protocol.methods import FS_CLOSE\n"
        'decode_params(FS_CLOSE, msgspec.Raw(b\'{"handleId":"h"}\'))\n'
        "print('execserver.protocol.slow_path' in sys.modules, 'execserver.protocol.syntax' in sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "False False\n"


CONTEXT = {
    "permissions": {"type": "managed", "file_system": {"type": "restricted", "entries": []}, "network": "x"},
    "cwd": "file:///w",
    "windowsSandboxLevel": "disabled",
}


@pytest.mark.parametrize("method", [FS_CANONICALIZE, FS_WRITE_FILE, PROCESS_START])
@pytest.mark.parametrize(
    ("sandbox", "twice"),
    [
        *((None, False), ({**CONTEXT, "permissions": {"type": "disabled"}}, False), (CONTEXT, False)),
        *((5, False), ("x", False), ([], False), ({}, False), ({"permissions": {"type": "disabled"}}, True)),
        *(({**CONTEXT, "permissions": {"type": "disabled"}, "cwd": "relative"}, False), ("\ud800", False)),
    ],
)
def test_a_context_known_by_its_text_is_decoded_as_any(
    method: Method[Any, Any], sandbox: object, twice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a request means never depends on whether its context was seen before."""
    start = {"processId": "p", "argv": ["x"], "cwd": "file:///", "env": {}, "tty": False, "arg0": None}
    members = start if method is PROCESS_START else {"path": "file:///f", "dataBase64": "eA=="}
    text = json.dumps({**members, "sandbox": sandbox})
    if twice:
        text = text.replace('"sandbox"', '"sandbox": 7, "sandbox"')

    def decoded() -> object:
        try:
            return decode_params(method, raw(text))
        except InvalidParams as error:
            return error.message

    first, second = decoded(), decoded()
    monkeypatch.setattr(decoding, "_decoded_but_for_sandbox", lambda kind, params: None)
    assert first == second == decoded()
