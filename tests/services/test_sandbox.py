"""Plans of sandbox contexts: made once, looked at in every call, made anew when the host has changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from execserver.protocol.errors import InternalError, InvalidParams, InvalidRequest
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.sandbox.plan import HIDDEN_DIRECTORY, READ
from execserver.sandbox.plan_record import decode_plan
from execserver.sandbox.policy import planner
from execserver.services.confinement import sandbox as module
from execserver.services.confinement.sandbox import REMEMBERED_PLANS, SandboxService
from execserver.services.mounts import MountTable
from execserver.settings import Settings
from execserver.zygote.confinement import NATIVE
from tests.support.peer import Json
from tests.support.sandboxes import context, deny_glob, managed, read_only, rule, special, workspace_write


def decoded(value: Json) -> FileSystemSandboxContext:
    return FileSystemSandboxContext.from_json(value)


@pytest.fixture
def service() -> Iterator[SandboxService]:
    made = SandboxService(Settings(), {b"TMPDIR": b"/var/tmp"})
    yield made
    made.close()


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of plans that were made, one entry each."""
    made: list[str] = []

    def count(name: str) -> None:
        real = getattr(planner, name)

        def counting(*arguments: object) -> object:
            made.append(name)
            return real(*arguments)

        monkeypatch.setattr(module, name, counting)

    count("plan_for_files")
    count("plan_for_process")
    return made


def test_a_plan_is_made_once_for_equal_contexts(
    service: SandboxService, planned: list[str], tmp_path: Path
) -> None:
    first = service.files_plan(decoded(workspace_write(tmp_path)))
    second = service.files_plan(decoded(workspace_write(tmp_path)))
    assert (first == second, planned) == (True, ["plan_for_files"])
    service.process_start(decoded(workspace_write(tmp_path)), b"/", False, {})
    service.process_start(decoded(workspace_write(tmp_path)), b"/tmp", False, {})
    assert planned == ["plan_for_files", "plan_for_process"]


@pytest.mark.parametrize("change", ["mkdir", "link", "replace"])
def test_a_change_that_matters_makes_another_plan(
    service: SandboxService, tmp_path: Path, change: str
) -> None:
    asked = decoded(workspace_write(tmp_path))
    (tmp_path / ".agents").mkdir()
    before = service.files_plan(asked)
    if change == "mkdir":
        (tmp_path / ".git").mkdir()
    elif change == "link":
        (tmp_path / ".git").write_text(f"gitdir: {tmp_path}/elsewhere\n")
    else:
        os.rename(tmp_path / ".agents", tmp_path / "kept")
        (tmp_path / ".agents").mkdir()
    assert service.files_plan(asked) != before


def test_a_change_elsewhere_makes_no_other_plan(
    service: SandboxService, planned: list[str], tmp_path: Path
) -> None:
    asked = decoded(workspace_write(tmp_path))
    service.files_plan(asked)
    (tmp_path / "src").mkdir()
    service.files_plan(asked)
    assert planned == ["plan_for_files"]


@pytest.mark.parametrize(
    ("place", "kind"),
    [(".cache/execserver", READ), (".config/execserver/tokens", HIDDEN_DIRECTORY), ("codex/proxy", READ)],
)
@pytest.mark.parametrize("named", [False, True])
def test_the_first_plan_keeps_what_was_not_there_before_it(
    tmp_path: Path, place: str, kind: str, named: bool
) -> None:
    """Also where the policy itself has found it missing."""
    own = tmp_path / place
    (tmp_path / place).parent.parent.mkdir(exist_ok=True)
    rules = [rule(tmp_path, "write"), *([rule(own, "write")] if named else [])]
    environ = {b"HOME": os.fsencode(tmp_path), b"CODEX_HOME": os.fsencode(tmp_path / "codex")}
    service = SandboxService(Settings(), environ)
    (tmp_path / "work").mkdir()
    found = service.process_start(decoded(workspace_write(tmp_path / "work", *rules)), b"/", False, {})
    service.close()
    plan = decode_plan(found.plan)
    assert own.is_dir()
    assert [mount.kind for mount in plan.mounts if mount.path == os.fsencode(own)][-1:] == [kind]


def test_patterns_are_expanded_every_time(service: SandboxService, tmp_path: Path) -> None:
    asked = decoded(read_only(tmp_path, deny_glob("**/*.key")))
    before = service.files_plan(asked)
    (tmp_path / "new.key").touch()
    assert service.files_plan(asked) != before


def test_a_refusal_stands_while_its_facts_do(
    service: SandboxService, planned: list[str], tmp_path: Path
) -> None:
    asked = decoded(workspace_write(tmp_path))
    os.symlink("/tmp", tmp_path / ".codex")
    for _ in range(2):
        with pytest.raises(
            InvalidRequest, match="failed to prepare fs sandbox: cannot enforce sandbox read-only"
        ):
            service.files_plan(asked)
    assert planned == ["plan_for_files"]
    os.unlink(tmp_path / ".codex")
    assert service.files_plan(asked).writable == (os.fsencode(tmp_path),)


def test_the_number_of_plans_kept_is_bounded(
    service: SandboxService, planned: list[str], tmp_path: Path
) -> None:
    for number in range(REMEMBERED_PLANS + 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        service.files_plan(decoded(read_only(folder)))
    planned.clear()
    service.files_plan(decoded(read_only(tmp_path / str(REMEMBERED_PLANS))))
    assert planned == []
    service.files_plan(decoded(read_only(tmp_path / "0")))
    assert planned == ["plan_for_files"]


def test_a_directory_that_is_not_there_is_the_contracts_error(
    service: SandboxService, tmp_path: Path
) -> None:
    with pytest.raises(InternalError) as caught:
        service.files_plan(decoded(workspace_write(tmp_path / "missing")))
    assert caught.value.message == "No such file or directory (os error 2)"


def test_the_temporary_folder_of_files_is_the_servers(service: SandboxService) -> None:
    asked = decoded(context(managed(special("root", "read"), special("tmpdir", "write"))))
    assert service.files_plan(asked).writable == (b"/var/tmp",)


def test_what_cannot_be_looked_at_is_an_error_and_no_absence(
    service: SandboxService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object, **more: object) -> os.stat_result:
        raise OSError(5, "Input/output error")

    asked = decoded(workspace_write(tmp_path))
    monkeypatch.setattr(os, "lstat", refuse)
    with pytest.raises(InvalidParams) as caught:
        service.process_start(asked, b"/", False, {})
    assert caught.value.message == "failed to prepare process sandbox: I/O error (os error 5)"


class SlowMounts(MountTable):
    """Mounts among which is one that may hang."""

    def all_local(self) -> bool:
        return False


def test_with_a_slow_file_system_mounted_plans_are_made_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service = SandboxService(Settings(), {}, mounts=SlowMounts())
    calls = []
    pool_call = service._pool.call

    def counting(function: Callable[..., object]) -> object:
        calls.append(1)
        return pool_call(function)

    monkeypatch.setattr(service._pool, "call", counting)
    assert service.files_plan(decoded(read_only(tmp_path))).mounts == ()
    assert calls == [1]
    service.close()


def test_a_plan_travels_with_its_back_end(service: SandboxService, tmp_path: Path) -> None:
    found = service.process_start(decoded(read_only(tmp_path)), b"/", False, {})
    assert (found.kind, found.has_own_init, bool(found.plan)) == (NATIVE, True, True)
