from __future__ import annotations

import importlib
import inspect
import re

import msgspec
import pytest
import simplejson
from hypothesis import given, settings
from hypothesis import strategies as st

import execserver.protocol
from execserver.protocol.record import Record, decode_value, encode_record
from tests.protocol.snapshot import FILE, MODULES, all_records, schema
from tests.protocol.strategies import one_in, records


def test_the_schema_is_the_recorded_one() -> None:
    assert schema() == FILE.read_text(), "the wire changed; `python -m tests.protocol.snapshot` records it"


@pytest.mark.parametrize("kind", all_records())
@settings(max_examples=one_in(3))
@given(data=st.data())
def test_a_record_survives_and_others_read_its_members_in_order(
    kind: type[Record], data: st.DataObject
) -> None:
    record = data.draw(records(kind))
    text = encode_record(record)
    assert msgspec.json.decode(text, type=kind, dec_hook=decode_value) == record
    names = [
        field.encode_name
        for field in msgspec.structs.fields(kind)
        if getattr(record, field.name) is not msgspec.UNSET
    ]
    assert list(simplejson.loads(text)) == names


@pytest.mark.parametrize("kind", all_records())
def test_every_record_is_documented_and_has_the_contracts_kind_of_name(kind: type[Record]) -> None:
    assert kind.__doc__
    assert kind.__name__[0].isupper()
    for field in msgspec.structs.fields(kind):
        assert "_" not in field.encode_name


def test_every_record_can_be_imported_from_the_package() -> None:
    for record in all_records():
        assert getattr(execserver.protocol, record.__name__) is record


def test_the_declared_names_are_the_ones_that_are_found() -> None:
    declared = set(re.findall(r" (\w+) as \1\b", inspect.getsource(execserver.protocol)))
    public = {
        name
        for module_name in (*MODULES, "permissions", "sandbox")
        for name, value in vars(importlib.import_module(f"execserver.protocol.{module_name}")).items()
        if isinstance(value, type)
        and value.__module__ == f"execserver.protocol.{module_name}"
        and name[0] != "_"
    }
    assert declared == public
    for name in declared:
        assert getattr(execserver.protocol, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'NoSuchParams'"):
        _ = execserver.protocol.NoSuchParams  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'no_such_module'"):
        _ = execserver.protocol.no_such_module  # type: ignore[attr-defined]
