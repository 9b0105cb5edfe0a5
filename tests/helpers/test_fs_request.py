"""The helper's own check of params accepts what the server accepts and refuses the rest with its texts."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.protocol.decoding import decode_params
from execserver.protocol.errors import InvalidParams
from execserver.protocol.json_text import parse
from execserver.protocol.methods import METHODS
from execserver.protocol.record import encode_record
from helpers.fs_request import OPERATIONS, read_params, read_request
from tests.protocol.strategies import records

# Attribute of a request -> member of the server's records.
MEMBERS = {
    "path": ("path", "source_path"),
    "destination": ("destination_path",),
    "content": ("data_base64",),
    "recursive": ("recursive",),
    "force": ("force",),
    "sandbox": ("sandbox",),
    "roots": ("roots",),
}
# Extensions of our server, which the helper passes over as it does every member that it does not know.
OF_THE_SERVER_ONLY = {"atomic", "mode", "ifUnchangedSince", "mustNotExist"}
Outcome = dict[str, object] | str
# Structs that have another name in the helper, at the reference, too.
HELPER_NAMES = {
    "WireCapabilityRootsDiscoverParams": "CapabilityRootsDiscoverParams",
    "CapabilityRootParams": "CapabilityRootDiscoverRequest",
}


def of_the_helpers_name(text: str) -> str:
    for name, other in HELPER_NAMES.items():
        text = text.replace(f"struct {name}", f"struct {other}")
    return text


def plain(value: object) -> object:
    """Return a member as the helper keeps it."""
    if isinstance(value, tuple):
        return tuple((root.id, root.path, root.sandbox) for root in value)
    return value


def of_the_server(operation: str, params: bytes) -> Outcome:
    try:
        record = decode_params(METHODS[operation], msgspec.Raw(params))
    except InvalidParams as error:
        return of_the_helpers_name(error.message)
    return {
        attribute: plain(getattr(record, member))
        for attribute, members in MEMBERS.items()
        for member in members
        if hasattr(record, member)
    }


def of_the_helper(operation: str, params: bytes, known: Outcome) -> Outcome:
    try:
        request = read_params(operation, parse(params))
    except InvalidParams as error:
        return error.message
    return {attribute: getattr(request, attribute) for attribute in known}


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2**65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "rel", "/a/../b", "~", "file://h/x", "file:///a?b", "http://x", "/\0", "disabled"])
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def spoilt(data: st.DataObject, value: Any) -> Any:
    """Return JSON with one thing changed: a member replaced, dropped, added or moved, at any depth."""
    if isinstance(value, dict) and value and data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(value)))
        action = data.draw(st.sampled_from(["replace", "drop", "move", "rename", "deeper"]))
        changed = dict(value)
        member = changed[name] if action in ("replace", "deeper") else changed.pop(name)
        if action == "replace":
            changed[name] = data.draw(junk)
        elif action == "deeper":
            changed[name] = spoilt(data, member)
        elif action == "move":
            changed[name] = member
        elif action == "rename":
            changed[data.draw(st.text(max_size=6))] = member
        return changed
    if isinstance(value, list) and value:
        at = data.draw(st.integers(0, len(value) - 1))
        return [*value[:at], spoilt(data, value[at]), *value[at + 1 :]]
    return data.draw(junk)


# Those of which the server knows nothing, or takes other params.
OWN = ("fs/open", "capabilities/loadDiscoveries")
SHARED = tuple(name for name in OPERATIONS if name not in OWN)


@pytest.mark.parametrize("operation", SHARED)
@given(data=st.data())
def test_random_params_have_the_same_outcome(operation: str, data: st.DataObject) -> None:
    record = data.draw(records(METHODS[operation].params))
    value = msgspec.json.decode(encode_record(record))
    value = {name: member for name, member in value.items() if name not in OF_THE_SERVER_ONLY}
    if data.draw(st.booleans()):
        value = list(value.values())[: data.draw(st.integers(0, len(value)))]
    for _ in range(data.draw(st.integers(0, 2))):
        value = spoilt(data, copy.deepcopy(value))
    params = msgspec.json.encode(value)
    expected = of_the_server(operation, params)
    assert of_the_helper(operation, params, expected) == expected


@pytest.mark.parametrize("operation", SHARED)
@pytest.mark.parametrize(
    "params", ["null", "5", "true", '"x"', "{}", "[]", "[null]", "[1,2,3,4,5]", '["/x"]']
)
def test_params_of_any_kind_have_the_same_outcome(operation: str, params: str) -> None:
    expected = of_the_server(operation, params.encode())
    assert of_the_helper(operation, params.encode(), expected) == expected


def test_the_operations_are_those_of_the_contract_in_its_order() -> None:
    assert OPERATIONS == (
        "capabilities/loadDiscoveries",
        "capabilityRoots/discoverV1",
        "fs/open",
        "fs/readFile",
        "fs/writeFile",
        "fs/createDirectory",
        "fs/getMetadata",
        "fs/canonicalize",
        "fs/readDirectory",
        "fs/walk",
        "fs/remove",
        "fs/copy",
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "invalid type: null, expected adjacently tagged enum FsHelperRequest"),
        ([], "invalid type: sequence, expected adjacently tagged enum FsHelperRequest"),
        ({}, "missing field `operation`"),
        ({"params": {}}, "missing field `operation`"),
        ({"operation": 5, "params": {}}, "invalid type: number, expected a string (in `operation`)"),
        (
            {"operation": "fs/close", "params": {}},
            "unknown variant `fs/close`, expected one of " + ", ".join(f"`{name}`" for name in OPERATIONS),
        ),
        ({"operation": "fs/remove"}, "missing field `params`"),
        ({"operation": "fs/remove", "params": None}, "invalid type: null, expected struct FsRemoveParams"),
        ({"operation": "fs/remove", "params": {"force": None}}, "missing field `path`"),
    ],
)
def test_what_is_no_request_is_refused(value: object, text: str) -> None:
    with pytest.raises(InvalidParams) as refused:
        read_request(value)
    assert refused.value.message == text


def test_unknown_members_are_ignored_and_the_order_does_not_matter() -> None:
    request = read_request({"x": 1, "params": {"y": 2, "path": "/a"}, "operation": "fs/remove"})
    assert (request.operation, request.path.native()) == ("fs/remove", b"/a")
    assert (request.recursive, request.force, request.sandbox) == (None, None, None)


def load_params(*locations: object, warnings: object = ()) -> object:
    return {"locations": list(locations), "warnings": list(warnings) if warnings == () else warnings}


@pytest.mark.parametrize(
    ("params", "text"),
    [
        (
            [],
            "invalid type: sequence, expected struct variant FsHelperRequest::LoadCapabilityDiscoveries",
        ),
        (None, "invalid type: null, expected struct variant FsHelperRequest::LoadCapabilityDiscoveries"),
        ({}, "missing field `locations`"),
        ({"locations": []}, "missing field `warnings`"),
        (
            {"locations": None, "warnings": []},
            "invalid type: null, expected a sequence (in `locations`)",
        ),
        (
            {"warnings": [5], "locations": 5},
            "invalid type: number, expected a string (in `warnings[0]`)",
        ),
        (load_params(warnings=None), "invalid type: null, expected a sequence (in `warnings`)"),
        (
            load_params(3),
            "invalid type: number, expected struct CapabilityLocation (in `locations[0]`)",
        ),
        (load_params({}), "missing field `root`"),
        (load_params({"root": 5}), "invalid type: number, expected a string (in `locations[0].root`)"),
        (
            load_params(["file:///x", None]),
            "invalid length 2, expected struct CapabilityLocation with 3 elements (in `locations[0]`)",
        ),
        (
            load_params(["file:///x", 5, None]),
            "invalid type: number, expected a string (in `locations[0].standalone_root_id`)",
        ),
        (
            load_params(["file:///x", None, 5]),
            "invalid type: number, expected struct InstalledPlugin (in `locations[0].plugin`)",
        ),
        (load_params(["file:///x", None, {"id": "a"}]), "missing field `version`"),
        (
            load_params(["file:///x", None, ["a", "1"]]),
            "invalid length 2, expected struct InstalledPlugin with 3 elements (in `locations[0].plugin`)",
        ),
    ],
)
def test_places_to_load_are_refused_with_the_texts_of_the_newest_helper(params: object, text: str) -> None:
    with pytest.raises(InvalidParams) as refused:
        read_params("capabilities/loadDiscoveries", params)
    assert refused.value.message == text


def test_places_to_load_may_be_records_or_arrays_of_all_members() -> None:
    plugin = {"id": "a@m", "version": "1", "remote_plugin_id": "r"}
    places = [
        {"root": "file:///x", "standaloneRootId": 5},
        {"root": "file:///x", "standalone_root_id": "s", "plugin": plugin},
        ["file:///x", None, ["a@m", "1", None]],
    ]
    request = read_params("capabilities/loadDiscoveries", load_params(*places, warnings=["w"]))
    assert [place[1:] for place in request.locations] == [
        (None, None),
        ("s", ("a@m", "1", "r")),
        (None, ("a@m", "1", None)),
    ]
    assert [place[0].native() for place in request.locations] == [b"/x"] * 3
    assert request.warnings == ("w",)
