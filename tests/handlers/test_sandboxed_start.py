"""process/start with a sandbox: what reaches the starter, and what is answered."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from execserver.sandbox.plan import FILTER_RESTRICTED, NETWORK_PROXY, ROOT_EMPTY, ROOT_HOST, SandboxPlan
from execserver.sandbox.plan_record import decode_plan
from execserver.services.confinement.current_plan import SandboxNotMade
from execserver.zygote.confinement import FILTER, LANDLOCK, UNCONFINED, Confinement, filtered
from tests.handlers.asking import Client
from tests.handlers.processes import sandbox, start
from tests.support.sandboxes import context, managed, read_only, special, workspace_write

pytestmark = pytest.mark.usefixtures("loop_failures")

NO_RULES = managed(network="enabled")
EXTERNAL = {"type": "external", "network": "restricted"}
PREFIX = "failed to prepare process sandbox: "


def confinement(client: Client, **members: object) -> Confinement:
    """Start a process; return what the starter was asked to apply."""
    assert start(client, **members) == {"processId": "p", "sandboxType": "linuxSeccomp"}
    found = client.server.spawner.runs[-1].spec.confinement
    assert found is not None
    return found


def plan_of(client: Client, **members: object) -> SandboxPlan:
    return decode_plan(confinement(client, **members).plan)


@pytest.mark.parametrize("permissions", [NO_RULES, managed(), managed(special("root", "read")), EXTERNAL])
def test_what_is_restricted_is_never_run_unsandboxed(asking: Client, permissions: dict[str, object]) -> None:
    found = confinement(asking, sandbox=sandbox(permissions=permissions))
    assert found.plan or found.kind == FILTER


@pytest.mark.parametrize(
    ("permissions", "expected"),
    [
        ({"type": "disabled"}, UNCONFINED),
        ({"type": "external", "network": "enabled"}, UNCONFINED),
        (EXTERNAL, filtered(FILTER_RESTRICTED)),
        (managed(special("root", "write")), filtered(FILTER_RESTRICTED)),
        (managed(special("root", "write"), network="enabled"), UNCONFINED),
    ],
)
def test_where_files_are_not_restricted_there_is_no_view(
    asking: Client, permissions: dict[str, object], expected: Confinement
) -> None:
    found = confinement(asking, sandbox=sandbox(permissions=permissions))
    assert found == expected


def test_without_a_sandbox_nothing_is_confined(asking: Client) -> None:
    for members in ({}, {"sandbox": None}, {"enforceManagedNetwork": True}):
        assert start(asking, f"p{len(asking.server.spawner.runs)}", **members)["sandboxType"] == "none"
        assert asking.server.spawner.runs[-1].spec.confinement is None


def test_the_plan_is_that_of_the_policy(asking: Client, tmp_path: Path) -> None:
    plan = plan_of(asking, cwd=f"file://{tmp_path}", sandbox=workspace_write(tmp_path))
    assert plan.writable == (os.fsencode(tmp_path),)
    assert {missing.path for missing in plan.missing} == {
        os.fsencode(tmp_path / name) for name in (".git", ".agents", ".codex")
    }


def test_project_roots_are_the_processs_own_folder_without_a_cwd(asking: Client, tmp_path: Path) -> None:
    profile = managed(special("root", "read"), special("project_roots", "write"))
    plan = plan_of(asking, cwd=f"file://{tmp_path}", sandbox=context(profile))
    assert plan.writable == (os.fsencode(tmp_path),)


def test_the_temporary_folder_is_the_one_of_the_request(asking: Client, tmp_path: Path) -> None:
    profile = managed(special("root", "read"), special("tmpdir", "write"))
    plan = plan_of(asking, env={"TMPDIR": str(tmp_path)}, sandbox=context(profile))
    assert plan.writable == (os.fsencode(tmp_path),)


def test_program_arguments_and_environment_stay_as_they_are(asking: Client, tmp_path: Path) -> None:
    members: dict[str, Any] = {"argv": ["a", "b"], "arg0": "zero", "env": {"B": "1", "A": "2"}}
    confinement(asking, sandbox=read_only(tmp_path), **members)
    spec = asking.server.spawner.runs[-1].spec
    assert ([bytes(word) for word in spec.argv], spec.arg0) == ([b"a", b"b"], b"zero")
    assert dict(spec.env) == {b"A": b"2", b"B": b"1"}


def test_on_a_terminal_without_a_view_arg0_does_not_become_the_program(asking: Client) -> None:
    confinement(asking, sandbox=sandbox(), arg0="zero", tty=True)
    assert asking.server.spawner.runs[-1].spec.arg0 is None


# --- refusals ----------------------------------------------------------------------------------------------


def refused(client: Client, tmp_path: Path) -> Confinement:
    os.symlink("/tmp", tmp_path / ".codex")
    return confinement(client, cwd=f"file://{tmp_path}", sandbox=workspace_write(tmp_path))


def test_what_cannot_be_enforced_is_told_by_a_child(asking: Client, tmp_path: Path) -> None:
    found = refused(asking, tmp_path)
    assert (found.plan, found.refusal_status) == (b"", 1)
    assert found.refusal.startswith(
        "error building bubblewrap command: Fatal error: cannot enforce sandbox read-only path "
    )


def test_the_reason_is_in_the_exit_and_in_every_read(asking: Client, tmp_path: Path) -> None:
    found = refused(asking, tmp_path)
    (run,) = asking.server.spawner.runs
    assert "sandboxRefusal" not in asking.ask("process/read", processId="p")
    run.write("stderr", b"sandbox")
    run.end(1 << 8)
    exited = next(message["params"] for message in asking.heard() if message["method"] == "process/exited")
    assert (exited["sandboxDenied"], exited["sandboxRefusal"]) == (True, found.refusal)
    read = asking.ask("process/read", processId="p")
    assert (read["sandboxDenied"], read["sandboxRefusal"]) == (True, found.refusal)


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({}, "managed proxy mode requires proxy environment variables"),
        (
            {"HTTP_PROXY": "http://192.0.2.1:1"},
            "managed proxy mode requires parseable loopback proxy endpoints",
        ),
    ],
)
def test_a_managed_network_needs_a_proxy(asking: Client, env: dict[str, str], why: str) -> None:
    found = confinement(asking, env=env, sandbox=sandbox(), enforceManagedNetwork=True)
    assert found.refusal == f"codex-linux-sandbox: failed to prepare host proxy routing bridge: {why}"
    assert (found.refusal_status, found.plan) == (101, b"")


def test_with_a_managed_network_there_is_a_view_for_every_policy(asking: Client) -> None:
    members: dict[str, Any] = {"env": {"http_proxy": "localhost:1"}, "enforceManagedNetwork": True}
    plan = plan_of(asking, sandbox=sandbox(), **members)
    assert (plan.root, plan.network) == (ROOT_HOST, NETWORK_PROXY)


def test_where_no_back_end_enforces_it_nothing_is_started(asking: Client, tmp_path: Path) -> None:
    asking.server.sandbox.choose_for_commands = lambda plan: "no sandbox here"
    assert start(asking, sandbox=read_only(tmp_path)) == (-32602, f"{PREFIX}no sandbox here")
    assert asking.server.spawner.runs == []


def test_a_back_end_without_an_init_of_its_own(asking: Client, tmp_path: Path) -> None:
    asking.server.sandbox.choose_for_commands = lambda plan: Confinement(LANDLOCK)
    found = confinement(asking, sandbox=read_only(tmp_path))
    assert (found.kind, found.has_own_init) == (LANDLOCK, False)


# --- files that change under a start -----------------------------------------------------------------------


def test_a_view_that_fails_for_the_same_plan_is_not_tried_again(asking: Client, tmp_path: Path) -> None:
    asking.server.spawner.failure = SandboxNotMade("no namespaces")
    assert start(asking, sandbox=read_only(tmp_path)) == (-32602, f"{PREFIX}no namespaces")
    asking.server.spawner.failure = None
    assert plan_of(asking, sandbox=read_only(tmp_path)).missing == ()


def test_a_view_that_fails_because_a_file_was_replaced_is_planned_again(
    asking: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawner, spawn = asking.server.spawner, asking.server.spawner.spawn
    (tmp_path / ".git").mkdir()

    def replace_and_fail(spec: Any) -> Any:
        monkeypatch.setattr(spawner, "spawn", spawn)
        os.rmdir(tmp_path / ".git")
        raise SandboxNotMade(".git was replaced")

    monkeypatch.setattr(spawner, "spawn", replace_and_fail)
    plan = plan_of(asking, cwd=f"file://{tmp_path}", sandbox=workspace_write(tmp_path))
    assert os.fsencode(tmp_path / ".git") in {missing.path for missing in plan.missing}


def test_an_empty_policy_shows_nothing(asking: Client) -> None:
    assert plan_of(asking, sandbox=sandbox(permissions={})).root == ROOT_EMPTY
