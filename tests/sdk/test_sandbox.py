"""The builders of sandboxes: what is sent for them, and that nothing falls back to no sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from execserver.client.errors import InvalidPath
from execserver.client.policies import POLICIES, policy_context
from execserver.protocol.paths import PathUri
from execserver.protocol.permissions import DISABLED, PermissionProfile
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver_client.sandbox import Sandbox, context_of

HERE = PathUri.from_native(b"/src")


def rules(context: FileSystemSandboxContext | None) -> set[tuple[str, str]]:
    """Return the accesses of a context with the places they are for."""
    assert context is not None
    assert context.permissions.entries is not None
    return {
        (entry.access, entry.path.uri if entry.path is not None else entry.kind)
        for entry in context.permissions.entries
    }


def permissions(context: FileSystemSandboxContext | None) -> PermissionProfile:
    assert context is not None
    return context.permissions


def test_a_workspace_is_the_folder_of_the_command_unless_roots_are_given() -> None:
    plain = Sandbox.workspace_write().context("/src")
    assert (plain.cwd, plain.workspace_roots) == (HERE, (HERE,))
    roots = Sandbox.workspace_write(roots=["/a", "file:///b%20c"]).context("/src").workspace_roots
    assert [root.uri for root in roots] == ["file:///a", "file:///b%20c"]


def test_no_roots_at_all_are_not_the_folder() -> None:
    assert Sandbox.workspace_write(roots=[]).context("/src").workspace_roots == ()


def test_the_network_is_closed_unless_it_is_asked_for() -> None:
    for build in (Sandbox.read_only, Sandbox.workspace_write):
        assert [build(network=each).context("/").permissions.network_enabled for each in (False, True)] == [
            False,
            True,
        ]
    assert Sandbox.full_access().context("/").permissions.kind == DISABLED


def test_temporary_folders_can_be_left_out() -> None:
    with_tmp = rules(Sandbox.workspace_write().context("/src"))
    without = rules(Sandbox.workspace_write(tmp=False).context("/src"))
    assert {place for _, place in with_tmp - without} == {"slash_tmp", "tmpdir"}
    assert without < with_tmp


def test_readable_folders_take_the_place_of_everything() -> None:
    assert ("read", "root") in rules(Sandbox.read_only().context("/"))
    found = rules(Sandbox.read_only(readable=["/data"]).context("/"))
    assert found == {("read", "minimal"), ("read", "file:///data")}
    workspace = rules(Sandbox.workspace_write(readable=["/data"], tmp=False).context("/"))
    assert ("read", "root") not in workspace
    assert ("read", "file:///data") in workspace


@pytest.mark.parametrize("name", ["read-only", "workspace-write", "full-access", "danger-full-access"])
def test_a_name_stands_for_the_same_as_on_the_command_line(name: str) -> None:
    of_run = {"full-access": "danger-full-access"}.get(name, name)
    assert of_run in POLICIES
    wanted = FileSystemSandboxContext.from_json(policy_context(of_run, HERE))
    assert context_of(name, "/src") == wanted


def test_a_context_and_its_object_are_taken_as_they_are() -> None:
    wanted = policy_context("read-only", HERE)
    record = FileSystemSandboxContext.from_json(wanted)
    assert context_of(record, "/other") is record
    assert context_of(wanted, "/other") == record
    assert Sandbox.from_json(wanted).context("/other") == record
    assert context_of(None, "/src") is None


@pytest.mark.parametrize(
    "wrong", ["", "none", "readonly", "full-access\n", b"read-only", 0, False, ["read-only"]]
)
def test_what_is_no_sandbox_is_refused_and_never_means_none(wrong: Any) -> None:
    with pytest.raises(ValueError, match="not a sandbox"):
        context_of(wrong, "/src")


@pytest.mark.parametrize(
    "wrong", [{}, {"sandboxPolicy": {"type": "?"}}, policy_context("read-only", HERE) | {"cwd": 3}]
)
def test_an_object_that_is_not_understood_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a sandbox"):
        Sandbox.from_json(wrong)


def test_paths_are_absolute_and_come_as_a_list() -> None:
    with pytest.raises(InvalidPath):
        Sandbox.workspace_write(roots=["src"])
    with pytest.raises(ValueError, match="a list of folders"):
        Sandbox.workspace_write(roots="/src")
    with pytest.raises(ValueError, match="a list of folders"):
        Sandbox.read_only(readable=b"/src")  # type: ignore[arg-type]


def test_hidden_paths_are_denied_beside_what_is_granted() -> None:
    for build in (Sandbox.read_only, Sandbox.workspace_write):
        plain, hiding = rules(build().context("/src")), rules(build(hidden=["/key"]).context("/src"))
        assert hiding - plain == {("deny", "file:///key")}
        assert plain < hiding
    with pytest.raises(InvalidPath):
        Sandbox.read_only(hidden=["key"])


def test_equal_ones_are_equal_and_can_be_keys() -> None:
    first, second = (Sandbox.workspace_write(roots=["/a"], network=True) for _ in range(2))
    assert len({first, second, Sandbox.workspace_write(roots=["/a"])}) == 2
