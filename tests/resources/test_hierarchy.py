"""Where control groups can be made, and why not."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from execserver.protocol.errors import InternalError
from execserver.resources import hierarchy
from execserver.resources.control_group import ControlGroup
from execserver.resources.hierarchy import Blocked, Hierarchy, Place, find_place
from execserver.services.resources.limiting import Limiter, SessionLimits
from execserver.settings import Settings
from tests.resources.groups import a_group
from tests.support.proc import descriptor_count

FILES = ("cgroup.procs", "cgroup.subtree_control", "cgroup.controllers", "cgroup.events")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a folder like /proc/self of a process whose cgroup v2 is the folder `v2`."""
    here = tmp_path / "proc"
    here.mkdir()
    group(tmp_path / "v2")
    says(here, "/")
    (here / "mountinfo").write_text(
        "31 23 0:28 / /sys rw - tmpfs tmpfs rw\n"
        f"32 31 0:29 / {tmp_path}/v2 rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    return here


def group(path: Path, controllers: str = "cpuset cpu memory pids\n") -> Path:
    path.mkdir(parents=True)
    for name in FILES:
        (path / name).write_text(controllers if name == "cgroup.controllers" else "")
    return path


def says(proc: Path, path: str) -> None:
    (proc / "cgroup").write_text(f"4:memory:/elsewhere\n0::{path}\n")


def blocker(proc: Path) -> str:
    with pytest.raises(Blocked) as blocked:
        find_place(str(proc))
    assert blocked.value.cure
    return blocked.value.blocker


def test_the_servers_own_group_is_the_place(proc: Path, tmp_path: Path) -> None:
    group(tmp_path / "v2/a.slice/b.service", "memory pids\n")
    says(proc, "/a.slice/b.service")
    place = find_place(str(proc))
    assert (place.path, place.controllers) == (
        f"{tmp_path}/v2/a.slice/b.service",
        frozenset(("memory", "pids")),
    )
    assert place.and_above() == [f"{tmp_path}/v2{rest}" for rest in ("/a.slice/b.service", "/a.slice", "")]
    assert not place.is_machine_root
    assert "is not delegated" in str(place.lacking("cpu"))


def test_a_server_in_its_leaf_goes_on_beside_it(proc: Path, tmp_path: Path) -> None:
    group(tmp_path / "v2/b.service/server")
    for name in FILES:
        (tmp_path / "v2/b.service" / name).write_text("memory\n")
    says(proc, "/b.service/server")
    assert find_place(str(proc)).path == f"{tmp_path}/v2/b.service"


def test_a_hybrid_machine_has_no_controllers_in_v2(proc: Path, tmp_path: Path) -> None:
    (tmp_path / "v2/cgroup.events").unlink()  # only the root of all has none
    (tmp_path / "v2/cgroup.controllers").write_text("hugetlb\n")
    place = find_place(str(proc))
    assert (place.controllers, place.is_machine_root) == (frozenset(), True)
    assert "systemd.unified_cgroup_hierarchy=1" in place.lacking("memory").cure


def test_why_there_can_be_none(proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert blocker(proc) == f"control group {tmp_path}/v2 is not delegated to this user"
    says(proc, "/../elsewhere")
    assert "is not below" in blocker(proc)
    (proc / "cgroup").write_text("4:memory:/\n")
    assert blocker(proc) == "this process is in no group of cgroup v2"
    (proc / "mountinfo").write_text("31 23 0:28 / /sys rw - tmpfs tmpfs rw\n")
    assert blocker(proc) == "no cgroup v2 is mounted here"
    monkeypatch.setattr(hierarchy, "_kernel", lambda: (5, 4))
    assert blocker(proc) == "this kernel cannot start a process in a control group"


def test_a_file_system_that_something_is_mounted_over_is_no_place(proc: Path, tmp_path: Path) -> None:
    (tmp_path / "v2").rename(tmp_path / "covered")
    assert blocker(proc) == f"control group {tmp_path}/v2 cannot be reached (No such file or directory)"


def test_groups_of_servers_that_were_killed_are_removed(tmp_path: Path) -> None:
    ended = f"{2**22 + 1}"  # above every pid
    (tmp_path / f"execserver.{ended}/s1/p1").mkdir(parents=True)
    (tmp_path / f"execserver.{os.getppid()}").mkdir()
    (tmp_path / "execserver.service").mkdir()
    made = Hierarchy(Place(str(tmp_path), frozenset(), str(tmp_path), is_machine_root=True))
    assert sorted(os.listdir(tmp_path)) == sorted(
        (f"execserver.{os.getppid()}", f"execserver.{os.getpid()}", "execserver.service")
    )
    session = made.session_group(1)
    process = made.process_group(session, 7)
    assert process.path == f"{tmp_path}/execserver.{os.getpid()}/s1/p7"
    assert process.remove()
    assert session.remove()
    made.close()
    assert not os.path.exists(f"{tmp_path}/execserver.{os.getpid()}")


def test_a_group_that_cannot_be_set_up_leaves_neither_folder_nor_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: ControlGroup, name: str, value: str) -> None:
        raise OSError(errno.EINVAL, "the kernel refuses")

    with a_group() as place:
        groups = Hierarchy(Place(place.path, frozenset(), place.path, True))
        before = descriptor_count(os.getpid())
        monkeypatch.setattr(ControlGroup, "write", fail)
        groups.controllers = frozenset(("memory",))
        limiter = Limiter(Settings(limit_session_memory_bytes=2**20), groups)
        for _ in range(3):
            with pytest.raises(OSError, match="the kernel refuses"):
                groups.session_group(1)
            with pytest.raises(InternalError, match="no control group can be made"):
                SessionLimits(limiter).account(None)
        groups.controllers = frozenset()
        monkeypatch.setattr(ControlGroup, "limit", lambda self, *numbers: fail(self, "", ""))
        with pytest.raises(InternalError, match="no control group can be made"):
            SessionLimits(limiter).account(None)
        assert descriptor_count(os.getpid()) == before
        assert [each.name for each in os.scandir(groups.tree.path) if each.is_dir()] == []
        monkeypatch.undo()
        groups.close()
