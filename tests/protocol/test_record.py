from __future__ import annotations

import msgspec
import pytest

from execserver.protocol.errors import InvalidParams
from execserver.protocol.paths import PathUri
from execserver.protocol.record import (
    REMEMBERED_CONTEXT_BYTES,
    U16,
    U64,
    Base64,
    Record,
    decode_value,
    encode_record,
    encode_value,
    refuse_beyond_u64,
)
from execserver.protocol.sandbox import FileSystemSandboxContext


class Sample(Record, frozen=True, kw_only=True):
    """A record with one member of each special kind."""

    first_path: PathUri | None = None
    some_bytes: Base64 = b""
    count: U64 = 0


def decode(text: str) -> Sample:
    return msgspec.json.decode(text, type=Sample, dec_hook=decode_value)


def test_members_are_camel_case_and_in_declaration_order() -> None:
    record = Sample(some_bytes=b"hi", count=5, first_path=PathUri.parse("/a b"))
    assert encode_record(record) == b'{"firstPath":"file:///a%20b","someBytes":"aGk=","count":5}'


def test_nothing_is_left_out() -> None:
    assert encode_record(Sample()) == b'{"firstPath":null,"someBytes":"","count":0}'


def test_json_text_is_passed_on() -> None:
    assert encode_record(msgspec.Raw(b'{"x": 1}')) == b'{"x": 1}'


def test_unknown_members_are_ignored() -> None:
    assert decode('{"other":[1],"count":2}') == Sample(count=2)


def test_records_do_not_change_and_have_a_hash() -> None:
    record = Sample(count=1)
    with pytest.raises(AttributeError):
        record.count = 2  # type: ignore[misc]
    assert hash(record) == hash(Sample(count=1))


@pytest.mark.parametrize(
    "text", ['{"someBytes":"YR=="}', '{"someBytes":5}', '{"firstPath":5}', '{"count":true}']
)
def test_values_of_another_kind_are_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(text)


def test_bytes_are_plain_bytes() -> None:
    assert isinstance(b"", Base64)
    assert not isinstance("", Base64)


def test_numbers_beyond_64_bits_are_refused() -> None:
    refuse_beyond_u64(None, 2**64 - 1)
    with pytest.raises(ValueError, match="invalid number"):
        refuse_beyond_u64(2**64)


def test_sixteen_bit_numbers_have_both_bounds() -> None:
    for text in ("-1", "65536"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(text, type=U16)
    assert msgspec.json.decode("65535", type=U16) == 65535


CONTEXT = {"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled", "cwd": "/a"}


def test_a_repeated_context_is_decoded_once() -> None:
    first = decode_value(FileSystemSandboxContext, CONTEXT)
    assert decode_value(FileSystemSandboxContext, dict(CONTEXT)) is first
    assert decode_value(FileSystemSandboxContext, CONTEXT | {"cwd": "/b"}) != first


def test_a_long_context_is_not_kept() -> None:
    long = CONTEXT | {"unknown": "x" * REMEMBERED_CONTEXT_BYTES}
    first = decode_value(FileSystemSandboxContext, long)
    again = decode_value(FileSystemSandboxContext, long)
    assert again == first
    assert again is not first


def test_a_bad_context_is_refused_every_time() -> None:
    for _ in range(2):
        with pytest.raises(InvalidParams, match="missing field `permissions`"):
            decode_value(FileSystemSandboxContext, {"windowsSandboxLevel": "disabled"})


def test_only_the_special_types_are_known_to_the_hooks() -> None:
    with pytest.raises(TypeError, match="no way to decode complex"):
        decode_value(complex, "1")
    with pytest.raises(TypeError, match="no way to encode complex"):
        encode_value(1j)
