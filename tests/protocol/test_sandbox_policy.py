from __future__ import annotations

from typing import Any

import pytest

from execserver.protocol.errors import InvalidParams
from execserver.protocol.permissions import PermissionProfile
from execserver.protocol.sandbox import FileSystemSandboxContext


def context(policy: object, **more: Any) -> FileSystemSandboxContext:
    return FileSystemSandboxContext.from_json(
        {"sandboxPolicy": policy, "windowsSandboxLevel": "disabled", **more}
    )


def rules(profile: PermissionProfile) -> list[str]:
    names = []
    for entry in profile.entries or ():
        place = entry.path.uri.removeprefix("file://") if entry.path else entry.kind
        names.append(f"{place}{'/' + entry.subpath if entry.subpath else ''}:{entry.access}")
    return names


def complaint(policy: object, **more: Any) -> str:
    with pytest.raises(InvalidParams) as caught:
        context(policy, **more)
    return caught.value.message


def test_full_access_means_no_sandbox() -> None:
    assert context({"type": "danger-full-access"}).permissions == PermissionProfile("disabled", True)


@pytest.mark.parametrize(("network", "enabled"), [({}, False), ({"network_access": "enabled"}, True)])
def test_an_external_sandbox_only_tells_about_the_network(network: dict[str, str], enabled: bool) -> None:
    permissions = context({"type": "external-sandbox", **network}).permissions
    assert permissions == PermissionProfile("external", enabled)


def test_read_only_reads_everything_without_network() -> None:
    permissions = context({"type": "read-only"}).permissions
    assert (rules(permissions), permissions.network_enabled) == (["root:read"], False)


def test_read_only_may_be_limited_to_some_roots() -> None:
    access = {"type": "restricted", "readable_roots": ["/a"]}
    policy = {"type": "read-only", "access": access, "network_access": True}
    permissions = context(policy).permissions
    assert (rules(permissions), permissions.network_enabled) == (["minimal:read", "/a:read"], True)
    access["include_platform_defaults"] = False  # type: ignore[assignment]
    assert rules(context(policy).permissions) == ["/a:read"]


def test_workspace_write_is_the_preset_with_its_protected_names() -> None:
    assert rules(context({"type": "workspace-write", "writable_roots": ["/x"]}).permissions) == [
        *("root:read", "project_roots:write", "slash_tmp:write", "tmpdir:write", "/x:write"),
        *("project_roots/.git:read", "project_roots/.agents:read", "project_roots/.codex:read"),
    ]


def test_temporary_folders_may_be_excluded() -> None:
    policy = {"type": "workspace-write", "exclude_slash_tmp": True, "exclude_tmpdir_env_var": True}
    assert "slash_tmp:write" not in rules(context(policy).permissions)
    assert "tmpdir:write" not in rules(context(policy).permissions)


def test_additional_file_rules_are_added_and_additional_network_is_not() -> None:
    more = {"file_system": {"write": ["/y"]}, "network": {"enabled": True}}
    permissions = context({"type": "read-only"}, additionalPermissions=more).permissions
    assert (rules(permissions), permissions.network_enabled) == (["root:read", "/y:write"], False)


def test_the_servers_own_directory_is_the_workspace_unless_one_is_named() -> None:
    assert context({"type": "read-only"}).cwd_is_servers
    assert not context({"type": "read-only"}, cwd="/a").cwd_is_servers
    assert not context({"type": "read-only"}, permissions={}).cwd_is_servers


def test_permissions_go_before_a_policy() -> None:
    assert context({"type": "danger-full-access"}, permissions={}).permissions.entries == ()


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (5, "invalid type: number, expected enum SandboxPolicy (in `sandbox.sandboxPolicy`)"),
        ({}, "missing field `type`"),
        (
            {"type": "none"},
            "unknown variant `none`, expected one of `danger-full-access`, `read-only`, `external-sandbox`, "
            "`workspace-write` (in `sandbox.sandboxPolicy.type`)",
        ),
        (
            {"type": "read-only", "network_access": "enabled"},
            'invalid type: string "enabled", expected a boolean (in `sandbox.sandboxPolicy.network_access`)',
        ),
        (
            {"type": "workspace-write", "writable_roots": "x"},
            'invalid type: string "x", expected a sequence (in `sandbox.sandboxPolicy.writable_roots`)',
        ),
        (
            {"type": "workspace-write", "writable_roots": [5]},
            "invalid type: number, expected a string (in `sandbox.sandboxPolicy.writable_roots`)",
        ),
        ({"type": "workspace-write", "writable_roots": ["a"]}, "path is not absolute: a"),
        (
            {"type": "read-only", "access": None},
            "invalid type: null, expected enum ReadOnlyAccess (in `sandbox.sandboxPolicy.access`)",
        ),
    ],
)
def test_whatever_is_not_understood_is_refused(policy: object, message: str) -> None:
    assert complaint(policy) == message


@pytest.mark.parametrize("more", [5, {"type": "disabled"}, {"x": 1}])
def test_additional_permissions_have_only_the_older_shape(more: object) -> None:
    text = "data did not match any variant of untagged enum PermissionProfileDe"
    assert (
        complaint({"type": "read-only"}, additionalPermissions=more)
        == f"{text} (in `sandbox.additionalPermissions`)"
    )
