from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from execserver.protocol.errors import InvalidParams
from execserver.protocol.paths import PathUri
from execserver.protocol.permissions import PermissionProfile
from execserver.protocol.sandbox import FileSystemSandboxContext
from tests.protocol.recorded import data_lines, decode_error, without_member
from tests.protocol.strategies import contexts
from tests.protocol.test_decoding import DOMAIN_CHECKS

BASE: dict[str, Any] = {"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled"}


def decode(**members: Any) -> FileSystemSandboxContext:
    return FileSystemSandboxContext.from_json(BASE | members)


def complaint(value: object) -> str:
    with pytest.raises(InvalidParams) as caught:
        FileSystemSandboxContext.from_json(value)
    return caught.value.message


def test_what_is_left_out_gets_its_default() -> None:
    context = decode()
    assert context == FileSystemSandboxContext(PermissionProfile("disabled", True))
    assert (context.cwd, context.workspace_roots, context.use_legacy_landlock) == (None, (), False)


def test_paths_may_be_uris_or_native() -> None:
    context = decode(cwd="/a/../b", workspaceRoots=["file:///c"])
    assert context.cwd == PathUri.parse("file:///b")
    assert context.workspace_roots == (PathUri.parse("/c"),)


def test_unknown_members_are_ignored() -> None:
    assert decode(userHomeDir="file:///x", cwd=None) == decode()


def test_a_policy_context_is_read_whole() -> None:
    found = decode(policyContext={"cwd": "/a", "workspaceRoots": ["file:///b", "/c"], "x": 5})
    assert found.policy_context is not None
    assert found.policy_context.cwd == PathUri.parse("/a")
    assert found.policy_context.workspace_roots == (PathUri.parse("/b"), PathUri.parse("/c"))
    assert FileSystemSandboxContext.from_json(found.to_json()) == found
    assert decode(policyContext=None) == decode()
    assert decode(policyContext=["/a", ["/b"]]) == decode(
        policyContext={"cwd": "/a", "workspaceRoots": ["/b"]}
    )
    assert decode(policyContext=[]) == decode(policyContext={})


@pytest.mark.parametrize(
    "given", [{}, {"cwd": "/a"}, {"workspaceRoots": ["/a"]}, {"cwd": "/b", "workspaceRoots": ["/a"]}]
)
def test_contexts_with_other_policy_contexts_are_others(given: object) -> None:
    for other in (None, {"cwd": "/x"}, {"workspaceRoots": ["/x"]}, {"workspaceRoots": ["/a", "/x"]}):
        assert decode(policyContext=given) != decode(policyContext=other)
    assert hash(decode(policyContext=given)) == hash(decode(policyContext=given))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "invalid type: number, expected struct FileSystemSandboxContext (in `sandbox`)"),
        ({}, "missing field `permissions`"),
        ({"permissions": {}}, "missing field `windowsSandboxLevel`"),
        (BASE | {"cwd": "rel"}, "path is not absolute: rel"),
        (BASE | {"cwd": 5}, "invalid type: number, expected a string (in `sandbox.cwd`)"),
        (
            BASE | {"workspaceRoots": None},
            "invalid type: null, expected a sequence (in `sandbox.workspaceRoots`)",
        ),
        (
            BASE | {"workspaceRoots": [5]},
            "invalid type: number, expected a string (in `sandbox.workspaceRoots[0]`)",
        ),
        (
            BASE | {"policyContext": 5},
            "invalid type: number, expected struct WireFileSystemPolicyContext (in `sandbox.policyContext`)",
        ),
        (
            BASE | {"policyContext": [None, [], 5]},
            "invalid length 3, expected fewer elements in array (in `sandbox.policyContext`)",
        ),
        (BASE | {"userHomeDir": 5}, "invalid type: number, expected a string (in `sandbox.userHomeDir`)"),
        (
            BASE | {"temporaryDirectories": 5},
            "invalid type: number, expected a sequence (in `sandbox.temporaryDirectories`)",
        ),
        (
            BASE | {"windowsSandboxProxySettingsMode": "x"},
            "unknown variant `x`, expected `reconcile` or `preserve`"
            " (in `sandbox.windowsSandboxProxySettingsMode`)",
        ),
        (
            BASE | {"policyContext": {"cwd": 5}},
            "invalid type: number, expected a string (in `sandbox.policyContext.cwd`)",
        ),
        (
            BASE | {"policyContext": {"workspaceRoots": 5}},
            "invalid type: number, expected a sequence (in `sandbox.policyContext.workspaceRoots`)",
        ),
        (
            BASE | {"useLegacyLandlock": None},
            "invalid type: null, expected a boolean (in `sandbox.useLegacyLandlock`)",
        ),
        (
            BASE | {"windowsSandboxLevel": "Off"},
            "unknown variant `Off`, expected one of `disabled`, `restricted-token`, `elevated`, `mxc`"
            " (in `sandbox.windowsSandboxLevel`)",
        ),
    ],
)
def test_the_first_bad_member_is_told(value: object, message: str) -> None:
    assert complaint(value) == message


def test_recorded_contexts_get_the_recorded_decode_errors() -> None:
    lines = data_lines("sandbox_requests.jsonl")
    recorded = [
        (request, None if (error or "").startswith(DOMAIN_CHECKS) else error)
        for request, error in ((line["request"], line["error"]) for line in lines)
    ]
    ours = [(request, decode_error(json.dumps(request))) for request, _ in recorded]
    assert [(request, error and without_member(error)) for request, error in ours] == recorded
    assert len([error for _, error in recorded if error]) == 8


def test_members_that_mean_nothing_on_linux_may_be_null() -> None:
    names = ("userHomeDir", "temporaryDirectories", "windowsSandboxProxySettingsMode")
    assert decode(**dict.fromkeys(names)) == decode()
    assert decode(userHomeDir="/h", temporaryDirectories=["/t"]) == decode()


@given(contexts)
def test_a_context_survives(context: FileSystemSandboxContext) -> None:
    again = FileSystemSandboxContext.from_json(context.to_json())
    assert again == context
    assert hash(again) == hash(context)
    assert repr(again) == repr(context)


def test_contexts_that_differ_are_not_equal() -> None:
    assert decode() != decode(cwd="/")
    assert decode() != decode(useLegacyLandlock=True)
    assert decode() != 5
