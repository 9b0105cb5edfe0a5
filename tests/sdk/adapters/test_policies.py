"""Which sandbox an adapter's settings stand for, and that a mistake opens none."""

from __future__ import annotations

import pytest

from execserver_adapters._policies import POLICIES, checked, is_confined, sandbox_of
from execserver_client import Sandbox

GIVEN = Sandbox.workspace_write(roots=["/src"]).context("/src").to_json()


@pytest.mark.parametrize("policy", ["", "Workspace-write", "danger-full-access", "full_access", "none"])
def test_a_name_that_is_none_is_refused_wherever_it_is_given(policy: str) -> None:
    for refusing in (checked, is_confined, lambda name: sandbox_of(name, ["/src"], network=False)):
        with pytest.raises(ValueError, match="workspace-write, read-only, full-access or the object"):
            refusing(policy)


def test_only_full_access_has_no_sandbox() -> None:
    assert [name for name in POLICIES if not is_confined(name)] == ["full-access"]
    assert [name for name in POLICIES if sandbox_of(name, ["/src"], network=False) is None] == ["full-access"]
    assert is_confined(GIVEN)


@pytest.mark.parametrize("network", [False, True])
def test_a_name_becomes_the_sandbox_with_these_folders_and_this_network(network: bool) -> None:
    assert sandbox_of("read-only", ["/src"], network=network) == Sandbox.read_only(network=network)
    expected = Sandbox.workspace_write(roots=["/src", "/more"], network=network)
    assert sandbox_of("workspace-write", ["/src", "/more"], network=network) == expected


def test_the_folder_a_command_starts_in_is_not_opened_by_it() -> None:
    made = sandbox_of("workspace-write", ["/src"], network=False)
    assert made is not None
    elsewhere = made.context("/elsewhere").to_json()
    assert elsewhere == {**GIVEN, "cwd": "file:///elsewhere"}
    assert elsewhere["workspaceRoots"] == ["file:///src"]


def test_an_object_is_taken_as_it_is_and_no_network_is_added() -> None:
    made = sandbox_of(GIVEN, ["/other"], network=True)
    assert made is not None
    assert made.context("/elsewhere").to_json() == GIVEN


def test_an_object_that_is_not_understood_is_refused() -> None:
    with pytest.raises(ValueError, match="permissions"):
        sandbox_of({**GIVEN, "permissions": {"type": "everything"}}, ["/src"], network=False)
