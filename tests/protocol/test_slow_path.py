from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from execserver.protocol.decoding import decode_params
from execserver.protocol.errors import InvalidParams
from execserver.protocol.files import FsCopyParams, FsReadBlockParams
from execserver.protocol.http import HttpRequestParams
from execserver.protocol.methods import METHODS, PROCESS_START
from execserver.protocol.process import ExecEnvPolicyInherit, ExecParams, ReadParams, SignalParams
from execserver.protocol.record import Record, encode_record
from execserver.protocol.session import InitializeParams, NoParams
from execserver.protocol.slow_path import decode_on_slow_path
from tests.protocol.strategies import one_in, records
from tests.support.proxy_settings import proxy_settings

START = {"processId": "p", "argv": ["x"], "cwd": "file:///", "env": {"A": "b"}, "tty": False}
POLICY = {"inherit": "all", "ignoreDefaultExcludes": True, "exclude": [], "set": {}, "includeOnly": []}


BY_NAME_ONLY = {
    *("metadata", "managedNetwork", "networkProxy", "shellSnapshot"),
    *("keepMs", "limits", "processName", "record", "resumeSessionName", "sessionName"),
}


def members_of(kind: type[Record]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(kind)]


def complaint(kind: type[Record], params: object) -> str:
    with pytest.raises(InvalidParams) as caught:
        decode_on_slow_path(kind, msgspec.Raw(json.dumps(params).encode()))
    return caught.value.message


def test_members_are_checked_in_the_order_they_came() -> None:
    assert complaint(ReadParams, {"afterSeq": "x", "processId": 5}).endswith("expected u64 (in `afterSeq`)")
    assert complaint(ReadParams, {"processId": 5, "afterSeq": "x"}).endswith(
        "expected a string (in `processId`)"
    )


def test_missing_members_come_last_and_in_declaration_order() -> None:
    assert (
        complaint(FsCopyParams, {"recursive": 5})
        == "invalid type: number, expected a boolean (in `recursive`)"
    )
    assert complaint(FsCopyParams, {"recursive": True}) == "missing field `sourcePath`"
    assert complaint(FsCopyParams, {"sourcePath": "/"}) == "missing field `destinationPath`"


def test_names_are_case_sensitive_and_camel_case() -> None:
    assert complaint(InitializeParams, {"ClientName": "x"}) == "missing field `clientName`"
    assert complaint(InitializeParams, {"client_name": "x"}) == "missing field `clientName`"


def test_a_default_does_not_make_null_acceptable() -> None:
    assert complaint(ExecParams, START | {"pipeStdin": None}) == (
        "invalid type: null, expected a boolean (in `pipeStdin`)"
    )


@pytest.mark.parametrize(
    ("member", "value", "message"),
    [
        ("envPolicy", 5, "invalid type: number, expected struct ExecEnvPolicy (in `envPolicy`)"),
        (
            "envPolicy",
            POLICY | {"inherit": "All"},
            "unknown variant `All`, expected one of `core`, `all`, `none` (in `envPolicy.inherit`)",
        ),
        ("envPolicy", POLICY | {"set": []}, "invalid type: sequence, expected a map (in `envPolicy.set`)"),
        (
            "envPolicy",
            POLICY | {"exclude": ["a", 5]},
            "invalid type: number, expected a string (in `envPolicy.exclude[1]`)",
        ),
        ("metadata", {"toolCallId": 5}, "invalid type: number, expected a string (in `metadata.toolCallId`)"),
        (
            "metadata",
            {"threadId": "0192"},
            "invalid length: expected length 32 for simple format, found 4 (in `metadata.threadId`)",
        ),
        (
            "managedNetwork",
            {"loopbackPorts": [70000]},
            "invalid number (in `managedNetwork.loopbackPorts[0]`)",
        ),
        ("env", {"A": 5}, "invalid type: number, expected a string (in `env.A`)"),
        ("cwd", "rel", "path is not absolute: rel"),
        ("sandbox", 5, "invalid type: number, expected struct FileSystemSandboxContext (in `sandbox`)"),
    ],
)
def test_nested_members_are_named_with_their_way(member: str, value: object, message: str) -> None:
    assert complaint(ExecParams, START | {member: value}) == message


def with_provider(provider: object) -> dict[str, object]:
    proxy = proxy_settings(credentialProviders={"own": provider})
    return START | {"networkProxy": {"proxy": proxy}}


def test_a_member_that_a_credential_provider_does_not_have_is_refused_by_both_decoders() -> None:
    misspelled = with_provider({"env": ["TOKEN"], "urlPrefixes": ["https://api.test/"], "patterns": 5})
    wanted = (
        "unknown field `urlPrefixes`, expected one of `env`, `patterns`, `url_prefixes`, "
        "`url_prefix_from_env`, `auth`, `header`, `prefix` (in `networkProxy.proxy.credentialProviders.own`)"
    )
    assert complaint(ExecParams, misspelled) == wanted
    with pytest.raises(InvalidParams) as caught:
        decode_params(PROCESS_START, msgspec.Raw(json.dumps(misspelled | {"extra": 1}).encode()))
    assert caught.value.message == wanted


def test_a_credential_provider_may_be_an_array_and_its_first_mistake_counts() -> None:
    started = decode_on_slow_path(
        ExecParams, msgspec.Raw(json.dumps(with_provider([["TOKEN"], ["t_.*"]])).encode())
    )
    assert started.network_proxy is not None
    assert started.network_proxy.proxy.credential_providers["own"].patterns == ("t_.*",)
    assert complaint(ExecParams, with_provider({"env": 5, "other": 1})) == (
        "invalid type: number, expected a sequence (in `networkProxy.proxy.credentialProviders.own.env`)"
    )


def test_bytes_are_refused_with_the_texts_of_base64() -> None:
    params = {"method": "GET", "url": "u", "requestId": "r", "bodyBase64": "YR=="}
    assert complaint(HttpRequestParams, params) == "Invalid last symbol 82, offset 1. (in `bodyBase64`)"


def test_a_struct_may_be_an_array_in_declaration_order() -> None:
    assert decode_on_slow_path(ReadParams, msgspec.Raw(b'["p",1,null,2]')) == (
        ReadParams(process_id="p", after_seq=1, max_bytes=None, wait_ms=2)
    )


@pytest.mark.parametrize(
    ("kind", "length"), [(InitializeParams, 1), (ExecParams, 8), (ReadParams, 4), (FsReadBlockParams, 3)]
)
def test_trailing_members_with_a_default_may_be_left_out_of_an_array(kind: type[Record], length: int) -> None:
    values = ["p", ["x"], "/", None, {}, False, False, None] if kind is ExecParams else ["p", 1, 2, 3]
    assert isinstance(decode_on_slow_path(kind, msgspec.Raw(json.dumps(values[:length]).encode())), kind)
    count = len([name for name in members_of(kind) if name not in BY_NAME_ONLY])
    elements = f"{count} element{'s' if count > 1 else ''}"
    assert complaint(kind, values[: length - 1]) == (
        f"invalid length {length - 1}, expected struct {kind.__name__} with {elements}"
    )


def test_an_array_must_not_be_too_long() -> None:
    assert complaint(ReadParams, ["p", 1, 2, 3, 4]) == "invalid length 5, expected fewer elements in array"


def test_enums_may_be_objects_with_one_name() -> None:
    start = START | {"envPolicy": POLICY | {"inherit": {"none": None}}}
    policy = decode_params(PROCESS_START, msgspec.Raw(json.dumps(start).encode())).env_policy
    assert policy is not None
    assert policy.inherit is ExecEnvPolicyInherit.NONE


def test_the_last_of_two_members_counts() -> None:
    assert (
        decode_on_slow_path(InitializeParams, msgspec.Raw(b'{"clientName":5,"clientName":"x"}')).client_name
        == "x"
    )


def test_an_unknown_signal_is_told_which_ones_there_are() -> None:
    assert complaint(SignalParams, {"processId": "p", "signal": "Hup"}) == (
        "unknown variant `Hup`, expected one of `interrupt`, `hup`, `int`, `quit`, `term`, `kill`, `usr1`, "
        "`usr2`, `cont`, `stop`, `winch` (in `signal`)"
    )


@pytest.mark.parametrize("params", [b'{"clientName":', b'"\x80"', b'{"clientName":"\xff"}'])
def test_damaged_json_is_a_decode_error(params: bytes) -> None:
    with pytest.raises(InvalidParams, match="params are not valid JSON: "):
        decode_on_slow_path(InitializeParams, msgspec.Raw(params))


PARAMS = sorted({method.params for method in METHODS.values()} - {NoParams}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", PARAMS)
@settings(max_examples=one_in(3))
@given(data=st.data())
def test_both_decoders_agree_on_what_is_right(kind: type[Record], data: st.DataObject) -> None:
    record = data.draw(records(kind))
    method = next(method for method in METHODS.values() if method.params is kind)
    text = msgspec.Raw(encode_record(record))
    assert decode_on_slow_path(kind, text) == decode_params(method, text)
