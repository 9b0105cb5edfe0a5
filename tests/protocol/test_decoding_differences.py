"""Params and messages that ours deliberately takes otherwise than the 0.142.0 reference."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from execserver.protocol.decoding import decode_params
from execserver.protocol.envelope import Notification, parse_message
from execserver.protocol.errors import InvalidParams
from execserver.protocol.methods import FS_OPEN, FS_READ_FILE, HTTP_REQUEST, PROCESS_WRITE, Method


def refusal(method: Method[Any, Any], params: str) -> str:
    with pytest.raises(InvalidParams) as caught:
        decode_params(method, msgspec.Raw(params.encode()))
    return caught.value.message


def test_an_array_is_no_trace() -> None:
    assert isinstance(parse_message('{"id":1,"method":"x","trace":["a","b"]}'), Notification)


def test_an_array_is_no_sandbox_context() -> None:
    text = refusal(FS_READ_FILE, '{"path":"/x","sandbox":[{"type":"disabled"},null,[],"disabled"]}')
    assert text == "invalid type: sequence, expected struct FileSystemSandboxContext (in `sandbox`)"


def test_members_of_newer_contracts_are_checked() -> None:
    assert refusal(FS_OPEN, '{"handleId":"h","path":"/x","mode":"append"}') == (
        "unknown variant `append`, expected `read` or `replace` (in `mode`)"
    )
    params = '{"method":"GET","url":"http://x","requestId":"r","redirectPolicy":"never"}'
    assert refusal(HTTP_REQUEST, params) == (
        "unknown variant `never`, expected `follow` or `stop` (in `redirectPolicy`)"
    )


def test_a_null_write_id_is_none() -> None:
    params = msgspec.Raw(b'{"processId":"p","chunk":"","writeId":null}')
    assert decode_params(PROCESS_WRITE, params).write_id is None
