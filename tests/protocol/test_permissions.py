from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from execserver.protocol.errors import InvalidParams
from execserver.protocol.paths import PathUri
from execserver.protocol.permissions import NO_SUCH_PROFILE, PermissionProfile, SandboxEntry
from tests.protocol.strategies import profiles

PATH = {"type": "path", "path": "/a"}


def managed(files: object, network: object = "restricted") -> dict[str, Any]:
    return {"type": "managed", "file_system": files, "network": network}


def restricted(*entries: object, **more: object) -> dict[str, Any]:
    return managed({"type": "restricted", "entries": list(entries), **more})


def special(kind: str, **more: object) -> dict[str, Any]:
    return {"type": "special", "value": {"kind": kind, **more}}


def rule(path: object, access: object = "read", **more: object) -> dict[str, Any]:
    return {"path": path, "access": access, **more}


def only_entry(path: object, access: object = "read", **more: object) -> SandboxEntry:
    entries = PermissionProfile.from_json(restricted(rule(path, access, **more))).entries
    assert entries is not None
    (entry,) = entries
    return entry


def test_disabled_allows_everything() -> None:
    profile = PermissionProfile.from_json({"type": "disabled", "network": "restricted", "x": 1})
    assert (profile.kind, profile.network_enabled, profile.entries) == ("disabled", True, None)


@pytest.mark.parametrize("network", ["restricted", {"restricted": None}])
def test_external_only_tells_about_the_network(network: object) -> None:
    profile = PermissionProfile.from_json({"type": "external", "network": network})
    assert (profile.kind, profile.network_enabled, profile.entries) == ("external", False, None)


def test_unrestricted_files_have_no_rules() -> None:
    profile = PermissionProfile.from_json(managed({"type": "unrestricted", "x": 1}, "enabled"))
    assert (profile.kind, profile.network_enabled, profile.entries) == ("managed", True, None)


def test_the_number_of_rules_is_bounded() -> None:
    assert len(PermissionProfile.from_json(restricted(*[rule(PATH)] * 4096)).entries or ()) == 4096
    older = {"file_system": {"read": ["/a"] * 4097}}
    for profile in (restricted(*[rule(PATH)] * 4097), older):
        with pytest.raises(InvalidParams, match="more than 4096 entries"):
            PermissionProfile.from_json(profile)


def test_restricted_files_keep_their_rules_in_order() -> None:
    profile = PermissionProfile.from_json(restricted(rule(PATH), rule(PATH, "write"), glob_scan_max_depth=3))
    path = PathUri.parse("/a")
    assert profile.entries == (SandboxEntry("path", "read", path), SandboxEntry("path", "write", path))
    assert profile.glob_scan_max_depth == 3


@pytest.mark.parametrize(
    ("path", "entry"),
    [
        ({"type": "path", "path": "file:///a", "x": 1}, SandboxEntry("path", "read", PathUri.parse("/a"))),
        (
            {"type": "glob_pattern", "pattern": "**/*.env"},
            SandboxEntry("glob_pattern", "read", text="**/*.env"),
        ),
        (special("root", subpath=5), SandboxEntry("root", "read")),
        (special("project_roots", subpath=".git"), SandboxEntry("project_roots", "read", subpath=".git")),
        (special("current_working_directory"), SandboxEntry("project_roots", "read")),
        (special("unknown", path="future"), SandboxEntry("unknown", "read", text="future")),
    ],
)
def test_each_place_has_its_entry(path: object, entry: SandboxEntry) -> None:
    assert only_entry(path) == entry


@pytest.mark.parametrize(
    ("access", "meant"), [("none", "deny"), ("deny", "deny"), ({"write": None}, "write")]
)
def test_none_is_another_word_for_deny(access: object, meant: str) -> None:
    assert only_entry(PATH, access, missing_path_behavior="skip").access == meant


@pytest.mark.parametrize(
    ("older", "network", "entries"),
    [
        ({}, False, ()),
        ({"network": None, "file_system": None}, False, ()),
        ({"network": {"enabled": True, "x": 1}}, True, ()),
        ({"network": {"enabled": None}, "file_system": {}}, False, ()),
        ({"file_system": {"entries": [rule(PATH, "none")]}}, False, (("path", "deny"),)),
        ({"file_system": {"read": ["/a"], "write": ["/b"]}}, False, (("path", "read"), ("path", "write"))),
        ({"file_system": {"read": None, "write": None}}, False, ()),
    ],
)
def test_the_older_shape_is_always_restricted(older: object, network: bool, entries: tuple[Any, ...]) -> None:
    profile = PermissionProfile.from_json(older)
    assert (profile.kind, profile.network_enabled) == ("managed", network)
    assert tuple((entry.kind, entry.access) for entry in profile.entries or ()) == entries


@pytest.mark.parametrize(
    "value",
    [
        *(None, "disabled", [], {"x": 1}, {"type": None}, {"type": "x"}, {"type": "external"}),
        *(
            managed({"type": "unrestricted"}, "x"),
            {"type": "managed", "fileSystem": {"type": "unrestricted"}},
        ),
        *(managed("unrestricted"), managed({"type": "restricted"}), managed({"type": "x", "entries": []})),
        *(restricted(glob_scan_max_depth=depth) for depth in (0, -1, 1.0, True, "3", 2**64)),
        *(restricted(5), restricted(rule(PATH, "x")), restricted(rule(PATH, None)), restricted(rule("/a"))),
        *(
            restricted(rule({"type": "path", "path": path}))
            for path in ("a", "", 5, "http://x/", "file:///a?")
        ),
        *(restricted(rule(special(kind))) for kind in ("x", "unknown")),
        *(restricted(rule(special("project_roots", subpath=5))), restricted(rule({"type": "glob_pattern"}))),
        *({"network": {"enabled": 1}}, {"network": 5}, {"file_system": {"x": 1}}, {"file_system": 5}),
        *({"file_system": {"entries": [], "read": []}}, {"file_system": {"read": ["a"]}}),
    ],
)
def test_whatever_is_not_understood_is_refused_with_one_text(value: object) -> None:
    with pytest.raises(InvalidParams) as caught:
        PermissionProfile.from_json(value)
    assert caught.value.message == f"{NO_SUCH_PROFILE} (in `sandbox.permissions`)"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("x", "unknown variant `x`, expected `skip`"),
        (5, "invalid type: integer `5`, expected string or map"),
        (5.5, "invalid type: floating point `5.5`, expected string or map"),
        (True, "invalid type: boolean `true`, expected string or map"),
        ([], "invalid type: sequence, expected string or map"),
    ],
)
def test_what_happens_to_missing_paths_is_checked(value: object, message: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        PermissionProfile.from_json(restricted(rule(PATH, missing_path_behavior=value)))
    assert caught.value.message == f"{message} (in `sandbox.permissions`)"


@pytest.mark.parametrize("value", ["skip", {"skip": None}, None])
def test_skipping_missing_paths_is_what_is_done_anyway(value: object) -> None:
    assert only_entry(PATH, missing_path_behavior=value) == only_entry(PATH)


@given(profiles)
def test_a_profile_survives_in_its_tagged_shape(profile: PermissionProfile) -> None:
    again = PermissionProfile.from_json(profile.to_json())
    assert again == profile
    assert hash(again) == hash(profile)
    assert repr(again) == repr(profile)


def test_profiles_that_differ_are_not_equal() -> None:
    assert PermissionProfile("disabled", True) != PermissionProfile("external", True)
    assert SandboxEntry("root", "read") != SandboxEntry("root", "write")
    assert PermissionProfile("disabled", True) != "disabled"
