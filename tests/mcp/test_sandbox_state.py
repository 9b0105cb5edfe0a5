"""Sandbox states: every policy, what is ignored, and what is refused."""

from __future__ import annotations

import pytest

from execserver.mcp.sandbox_state import SandboxState, before_any_update, read_state
from execserver.protocol.errors import InvalidParams, RpcError
from execserver.protocol.permissions import (
    DISABLED,
    EXTERNAL,
    MANAGED,
    PATH,
    PROJECT_ROOTS,
    ROOT,
    SLASH_TMP,
    TMPDIR,
    WRITE,
)


def state(policy: object, **more: object) -> SandboxState:
    return read_state({"sandboxPolicy": policy, "sandboxCwd": "/work", **more})


def writable(policy: object) -> set[str]:
    """Return what a policy lets commands write: kinds of places, and paths."""
    entries = state(policy).policy.entries
    assert entries is not None
    return {
        entry.path.uri if entry.kind == PATH and entry.path else entry.kind
        for entry in entries
        if entry.access == WRITE
    }


def test_before_any_update_calls_may_only_read() -> None:
    initial = before_any_update("/w")
    assert (initial.policy.kind, initial.network, initial.is_enforced) == (MANAGED, False, True)
    assert [(entry.kind, entry.access) for entry in initial.policy.entries or ()] == [(ROOT, "read")]
    assert initial.sandbox_cwd == "/w"


@pytest.mark.parametrize(
    ("policy", "kind", "network", "enforced"),
    [
        ({"type": "read-only"}, MANAGED, False, True),
        ({"type": "workspace-write"}, MANAGED, False, True),
        ({"type": "workspace-write", "network_access": True}, MANAGED, True, True),
        ({"type": "workspace-write", "network-access": True}, MANAGED, False, True),
        ({"type": "danger-full-access"}, DISABLED, True, False),
        ({"type": "danger-full-access", "writable_roots": []}, DISABLED, True, False),
        ({"type": "external-sandbox"}, EXTERNAL, False, False),
        ({"type": "external-sandbox", "network_access": "restricted"}, EXTERNAL, False, False),
        ({"type": "external-sandbox", "network_access": "enabled", "x": 1}, EXTERNAL, True, False),
    ],
)
def test_every_policy_is_understood(policy: object, kind: str, network: bool, enforced: bool) -> None:
    found = state(policy)
    assert (found.policy.kind, found.network, found.is_enforced) == (kind, network, enforced)


def test_a_workspace_is_what_the_policy_names() -> None:
    assert writable({"type": "read-only"}) == set()
    assert writable({"type": "workspace-write"}) == {PROJECT_ROOTS, SLASH_TMP, TMPDIR}
    narrow = {"exclude_slash_tmp": True, "exclude_tmpdir_env_var": True, "writable_roots": ["/opt", "/a b"]}
    assert writable({"type": "workspace-write", **narrow}) == {
        PROJECT_ROOTS,
        "file:///opt",
        "file:///a%20b",
    }


def test_the_folder_is_the_clients_or_lies_below_the_servers() -> None:
    for written, uri in (
        ("/w", "file:///w"),
        ("w", "file:///srv/w"),
        ("", "file:///srv"),
        ("/a/b/", "file:///a/b"),
    ):
        cwd = state({"type": "read-only"})._replace(sandbox_cwd=written).context("/srv").cwd
        assert cwd is not None
        assert cwd.uri == uri


def test_the_rest_is_kept() -> None:
    found = state({"type": "read-only"}, codexLinuxSandboxExe="/h", useLinuxSandboxBwrap=True, bogus=1)
    assert (found.linux_sandbox_exe, found.use_bwrap) == ("/h", True)
    assert state({"type": "read-only"}, codexLinuxSandboxExe=None).linux_sandbox_exe is None


PROFILE = {
    "type": "managed",
    "file_system": {
        "type": "restricted",
        "entries": [
            {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"},
            {"path": {"type": "path", "path": "/home/me/ws"}, "access": "write"},
            {"path": {"type": "path", "path": "/home/me/ws/.git"}, "access": "read"},
        ],
    },
    "network": "restricted",
}


def test_a_newer_clients_profile_counts_before_its_policy() -> None:
    state = {"permissionProfile": PROFILE, "sandboxCwd": "file:///home/me/w%20s", "useLegacyLandlock": False}
    for more in ({}, {"sandboxPolicy": {"type": "danger-full-access"}}):
        found = read_state({**state, **more})
        assert (found.policy.kind, found.network, found.sandbox_cwd) == (MANAGED, False, "/home/me/w s")
        assert [(entry.kind, entry.access) for entry in found.policy.entries or ()] == [
            (ROOT, "read"),
            (PATH, "write"),
            (PATH, "read"),
        ]
    full = read_state({"permissionProfile": {"type": "disabled"}, "sandboxCwd": "/"})
    assert (full.policy.kind, full.network) == (DISABLED, True)
    policy = {"sandboxPolicy": {"type": "read-only"}, "permissionProfile": None, "sandboxCwd": "/"}
    assert read_state(policy).policy.kind == MANAGED


@pytest.mark.parametrize("profile", [5, [], {"type": "bogus"}, {**PROFILE, "network": "some"}])
def test_a_profile_that_is_not_understood_is_refused(profile: object) -> None:
    with pytest.raises(InvalidParams):
        state({"type": "danger-full-access"}, permissionProfile=profile)


@pytest.mark.parametrize("cwd", ["file://host/x", "file:///C:/x", "file:///%00", "file:///%ff"])
def test_a_folder_that_is_none_here_is_refused(cwd: str) -> None:
    with pytest.raises(RpcError):
        read_state({"sandboxPolicy": {"type": "read-only"}, "sandboxCwd": cwd})


@pytest.mark.parametrize(
    "policy",
    [
        *(None, "read-only", [], {}, {"type": "bogus"}, {"type": 5}, {"type": None}),
        {"type": "workspace-write", "writable_roots": ["relative"]},
        {"type": "workspace-write", "writable_roots": ["file:///opt"]},
        {"type": "workspace-write", "writable_roots": "/opt"},
        {"type": "workspace-write", "writable_roots": [5]},
        {"type": "workspace-write", "writable_roots": ["/a\0b"]},
        {"type": "workspace-write", "network_access": "enabled"},
        {"type": "workspace-write", "exclude_slash_tmp": None},
        {"type": "external-sandbox", "network_access": True},
        {"type": "external-sandbox", "network_access": "bogus"},
    ],
)
def test_a_policy_that_is_not_understood_is_refused(policy: object) -> None:
    with pytest.raises(InvalidParams):
        state(policy)


@pytest.mark.parametrize(
    "params",
    [
        *(None, 5, "x", [], {}),
        {"sandboxPolicy": {"type": "read-only"}},
        {"sandboxCwd": "/"},
        {"sandboxPolicy": {"type": "read-only"}, "sandboxCwd": None},
        {"sandboxPolicy": {"type": "read-only"}, "sandboxCwd": "/a\0"},
        {"sandboxPolicy": {"type": "read-only"}, "sandboxCwd": "/", "codexLinuxSandboxExe": 5},
        {"sandboxPolicy": {"type": "read-only"}, "sandboxCwd": "/", "useLinuxSandboxBwrap": None},
    ],
)
def test_a_state_of_another_shape_is_refused(params: object) -> None:
    with pytest.raises(InvalidParams):
        read_state(params)
