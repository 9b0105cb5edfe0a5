"""The tool as clients see it: its schema, its arguments, its result, its errors."""

from __future__ import annotations

import json

import msgspec
import pytest

from execserver.mcp.tool import DESCRIPTION, ExecParams, ExecResult, ToolError, read_arguments
from execserver.protocol.errors import InvalidParams

PREFIX = "failed to deserialize parameters: "


def read(arguments: object) -> ExecParams:
    return read_arguments(msgspec.Raw(json.dumps(arguments).encode()))


def refusal(text: str) -> str:
    with pytest.raises(InvalidParams) as caught:
        read_arguments(msgspec.Raw(text.encode()))
    assert caught.value.code == -32602
    assert caught.value.message.startswith(PREFIX)
    return caught.value.message.removeprefix(PREFIX)


def test_null_is_the_same_as_nothing() -> None:
    assert read({"command": "a", "workdir": "b"}) == ExecParams("a", "b", None, None)
    assert read({"workdir": "b", "command": "", "timeout_ms": None, "login": None}) == ExecParams("", "b")
    assert read({"command": "a", "workdir": "b", "timeout_ms": 2**64 - 1}).timeout_ms == 2**64 - 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("{}", "missing field `command`"),
        ('{"command":"ls"}', "missing field `workdir`"),
        ('{"command":5,"workdir":"/"}', "invalid type: integer `5`, expected a string"),
        ('{"command":null,"workdir":"/"}', "invalid type: null, expected a string"),
        ('{"command":"a","workdir":["/"]}', "invalid type: sequence, expected a string"),
        ('{"command":{},"workdir":"/"}', "invalid type: map, expected a string"),
        (
            '{"command":"a","workdir":"/","timeout_ms":-1}',
            "invalid value: integer `-1`, expected u64",
        ),
        (
            '{"command":"a","workdir":"/","timeout_ms":1.5}',
            "invalid type: floating point `1.5`, expected u64",
        ),
        (
            '{"command":"a","workdir":"/","timeout_ms":1e30}',
            "invalid type: floating point `1e+30`, expected u64",
        ),
        ('{"command":"a","workdir":"/","timeout_ms":true}', "invalid type: boolean `true`, expected u64"),
        ('{"command":"a","workdir":"/","timeout_ms":1e999}', "number out of range"),
        ('{"command":"a","workdir":"/","login":"x"}', 'invalid type: string "x", expected a boolean'),
        ("[]", "invalid type: sequence, expected a map"),
        ('"x"', 'invalid type: string "x", expected a map'),
    ],
)
def test_a_bad_argument_is_told_in_the_contracts_words(arguments: str, reason: str) -> None:
    assert refusal(arguments) == reason


def test_a_long_value_is_cut_in_the_text() -> None:
    assert len(refusal(json.dumps({"command": "a", "workdir": "/", "login": "x" * 10_000}))) < 300


def test_a_result_is_a_text_with_four_fields() -> None:
    result = json.loads(ExecResult(3, "a\nb\x00é", 1_000_000_007).to_json())
    (content,) = result["content"]
    assert (result["isError"], content["type"]) == (False, "text")
    assert content["text"] == (
        '{"exit_code":3,"output":"a\\nb\\u0000é","duration":{"secs":1,"nanos":7},"timed_out":false}'
    )


def test_a_lone_surrogate_in_the_output_does_not_break_the_answer() -> None:
    text = json.loads(ExecResult(0, "x\udcff", 0).to_json())["content"][0]["text"]
    assert json.loads(text)["output"] == "x?"


def test_an_error_carries_its_code_and_data() -> None:
    error = ToolError(-5, "no", {"output": "x"})
    assert (error.code, error.message, error.data) == (-5, "no", {"output": "x"})


def test_the_schema_asks_for_command_and_workdir() -> None:
    schema = DESCRIPTION["inputSchema"]
    assert isinstance(schema, dict)
    assert schema["required"] == ["command", "workdir"]
    assert list(schema["properties"]) == ["command", "workdir", "timeout_ms", "login"]
