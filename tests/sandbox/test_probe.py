"""The probe tells what works, and for what does not the very blocker that the test has set up."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from pathlib import Path

import pytest

from execserver.sandbox.backends import probe as probing
from execserver.sandbox.backends.blockers import SYSCTL_MAX
from execserver.sandbox.backends.probe import attempt, missing_calls, probe, read_facts
from execserver.sandbox.backends.probe_bwrap import run as run_program
from execserver.sandbox.backends.probe_bwrap import try_bwrap
from execserver.sandbox.backends.probe_folders import program_files, state, unpacking_places
from execserver.sandbox.backends.report import (
    BUBBLEWRAP,
    LANDLOCK,
    MOUNT_CALLS,
    MOUNTS_OLD,
    NAMESPACES,
    PROC,
    SECCOMP,
    USER_NAMESPACES,
    Report,
    from_members,
)
from execserver.sandbox.backends.selection import Choice, choose, policies
from execserver.sandbox.kernel import landlock
from execserver.sandbox.kernel.syscalls import Kernel
from tests.support.programs import write_script
from tests.support.roots import FREE_UID, OLD_KERNEL, become, hide_calls, in_child
from tests.support.ways import refuse_user_namespaces

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can set up what shall be in the way")


def probed(refusal: str = "", user: int = 0, hidden: tuple[str, ...] = ()) -> Report:
    """Return what is found by a process of a user to whom things are refused."""

    def act() -> int:
        refuse_user_namespaces(refusal)
        become(user)
        if hidden:
            hide_calls(hidden)
        os.write(1, json.dumps(probe().members()).encode())
        return 0

    done = in_child(act)
    assert done.status == 0, done
    return from_members(json.loads(done.out))


@pytest.mark.parametrize("user", [pytest.param(0, marks=ROOT_ONLY), pytest.param(FREE_UID, marks=ROOT_ONLY)])
def test_where_nothing_is_in_the_way_all_works(user: int) -> None:
    report = probed(user=user)
    if not report.check(USER_NAMESPACES).works:
        pytest.skip(f"this machine refuses user namespaces: {report.check(USER_NAMESPACES).blocker}")
    assert report.native
    assert report.user_namespace
    assert report.uid == user
    assert [check.name for check in report.checks if not check.works and check.name != LANDLOCK] == []


@ROOT_ONLY
def test_a_filter_like_dockers_is_named() -> None:
    report = probed("filter", FREE_UID)
    check = report.check(USER_NAMESPACES)
    assert not check.works
    assert "seccomp filter" in check.blocker
    assert "seccomp=unconfined" in check.cure
    assert not report.native
    assert not report.check(NAMESPACES).works
    assert "user namespace" in report.check(PROC).blocker


@ROOT_ONLY
def test_a_sysctl_of_0_is_named() -> None:
    report = probed("limit", FREE_UID)
    check = report.check(USER_NAMESPACES)
    assert f"{SYSCTL_MAX}=0" in check.blocker
    assert check.cure == f"sysctl -w {SYSCTL_MAX}=15000"
    assert not report.native


@ROOT_ONLY
@pytest.mark.parametrize("refusal", ["filter", "limit"])
def test_root_needs_no_user_namespace(refusal: str) -> None:
    report = probed(refusal)
    assert report.native
    assert not report.user_namespace
    assert "with root's rights" in report.check(NAMESPACES).detail
    choice = choose(policies()["workspace-write"], report)
    assert isinstance(choice, Choice)
    assert "as root, without a user namespace" in choice.detail


@ROOT_ONLY
def test_an_old_kernel_is_served_with_old_calls_and_the_variant_named() -> None:
    report = probed(hidden=OLD_KERNEL)
    assert report.native
    assert report.mounts == MOUNTS_OLD
    detail = report.check(MOUNT_CALLS).detail
    assert "mount(2), as on Linux 5.4 and 5.10" in detail
    for name in ("openat2", "open_tree", "mount_setattr", "clone3", "close_range"):
        assert name in detail
    assert report.landlock_abi == 0
    assert report.check(LANDLOCK).blocker == "the kernel has no Landlock"
    assert str(choose(policies()["narrow"], report)) == "native (old mount calls)"


@ROOT_ONLY
def test_a_kernel_without_filters_is_named() -> None:
    report = probed(hidden=("seccomp",))
    assert not report.seccomp
    assert not report.native
    assert report.check(SECCOMP).blocker == "the kernel has no filters of system calls"


def test_missing_calls_come_with_their_version() -> None:
    missing = missing_calls(Kernel(["openat2", "close_range"]))
    assert missing["openat2"] == "5.6"
    assert missing["close_range"] == "5.9"


def test_an_attempt_is_made_in_a_process_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getpid()

    def refuse() -> None:
        assert os.getpid() != own
        raise OSError(errno.EXDEV, "", "a step")

    def die() -> None:
        os._exit(3)

    def hang() -> None:
        time.sleep(1000)

    def leave() -> None:
        sys.exit(0)

    assert attempt(lambda: None) is None
    assert attempt(refuse) == ("a step", errno.EXDEV)
    assert attempt(die) == ("", errno.EIO)
    assert attempt(leave) == ("", errno.EIO)
    monkeypatch.setattr(probing, "TRIAL_LIMIT_S", 0.1)
    assert attempt(hang) == ("", errno.ETIMEDOUT)


def test_the_facts_are_read_from_the_kernel() -> None:
    facts = read_facts()
    assert facts.privileged == (os.geteuid() == 0)
    assert not facts.chroot
    assert SYSCTL_MAX in facts.sysctls


@ROOT_ONLY
def test_a_chroot_is_noticed(tmp_path: Path) -> None:
    def act() -> int:
        (tmp_path / "proc").mkdir()
        Kernel().call("unshare", 0x20000)
        Kernel().call("mount", b"none", b"/", None, 0x44000, None)
        Kernel().call("mount", b"/proc", os.fsencode(tmp_path / "proc"), None, 4096 | 0x4000, None)
        os.chroot(tmp_path)
        os.write(1, repr(read_facts().chroot).encode())
        return 0

    assert in_child(act).out == "True"


class TestBubblewrap:
    HELP = (
        "--args FD --seccomp FD --perms OCTAL --json-status-fd FD --cap-drop CAP --remount-ro DEST "
        "--disable-userns"
    )

    @pytest.fixture(autouse=True)
    def _any_owner(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("execserver.sandbox.backends.bwrap._check_owners", lambda path, status: None)

    def tried(self, folder: Path, script: str) -> str:
        write_script(folder / "bwrap", script)
        found, check = try_bwrap(os.fsencode(folder), b"/")
        assert (found is not None) == check.works
        return check.blocker or check.detail

    def test_none_is_said_so(self, tmp_path: Path) -> None:
        found, check = try_bwrap(os.fsencode(tmp_path), b"/")
        assert found is None
        assert check.name == BUBBLEWRAP
        assert check.blocker == "there is no bwrap in the server's PATH"
        assert "bubblewrap" in check.cure

    def test_one_without_what_is_needed_is_too_old(self, tmp_path: Path) -> None:
        text = self.tried(tmp_path, f"echo '{self.HELP.replace('--perms', '')}'")
        assert "is too old: it lacks --perms" in text

    def test_one_that_may_not_make_namespaces_says_so(self, tmp_path: Path) -> None:
        script = f"""case $1 in
            --help) echo '{self.HELP}';;
            --version) echo bubblewrap 0.9.9;;
            *) echo 'bwrap: No permissions to create new namespace, likely because ...' >&2; exit 1;;
        esac"""
        text = self.tried(tmp_path, script)
        assert "0.9.9 (not setuid): it may not make namespaces either (No permissions" in text

    def test_one_that_fails_otherwise_is_quoted(self, tmp_path: Path) -> None:
        script = f"""[ $1 = --help ] && {{ echo '{self.HELP}'; exit; }}
            echo "bwrap: Can't mount proc on /newroot/proc: Permission denied" >&2; exit 1"""
        assert "it cannot build a view (Can't mount proc" in self.tried(tmp_path, script)

    def test_where_no_file_in_memory_is_executed_it_is_no_back_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if landlock.abi(Kernel()) < landlock.LEAST_ABI_IN_ROOT:
            pytest.skip("this kernel has no Landlock of ABI 2 or newer, so nothing of ours comes behind it")

        def refuse(name: str, flags: int) -> int:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(os, "memfd_create", refuse)
        write_script(tmp_path / "bwrap", f"echo '{self.HELP}'")
        found, check = try_bwrap(os.fsencode(tmp_path), b"/")
        assert (found, check.works, check.cure) == (None, False, "sysctl -w vm.memfd_noexec=1")
        assert "the kernel executes no file in memory" in check.blocker

    def test_one_that_works_is_described(self, tmp_path: Path) -> None:
        script = f"""case $1 in
            --help) echo '{self.HELP} --argv0 NAME';;
            *) echo bubblewrap 0.11.0;;
        esac"""
        assert self.tried(tmp_path, script).endswith("bwrap 0.11.0 (not setuid, takes --argv0)")

    def test_one_that_hangs_is_killed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("execserver.sandbox.backends.probe_bwrap._LIMIT_S", 0.2)
        assert "is too old" in self.tried(tmp_path, "exec sleep 1000")

    def test_what_cannot_be_started_is_an_error_of_the_shell(self) -> None:
        assert run_program([b"/no/such/program"]) == (127, "bwrap: No such file or directory")


class TestFolders:
    def test_the_state_folder_is_private_to_the_user(self, tmp_path: Path) -> None:
        check = state({b"XDG_RUNTIME_DIR": os.fsencode(tmp_path)})
        assert check.works
        assert Path(check.detail).parent == tmp_path
        assert Path(check.detail).stat().st_mode & 0o777 == 0o700

    def test_without_a_state_folder_what_is_refused_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("execserver.sandbox.backends.probe_folders.state_folder", lambda _: None)
        check = state({})
        assert not check.works
        assert "are refused" in check.blocker
        assert "XDG_RUNTIME_DIR" in check.cure

    def test_a_folder_that_executes_nothing_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result([0] * 8 + [os.ST_NOEXEC, 255]))
        check = program_files(b"/tmp/execserver-0/hash", [b"/home/u/.cache/execserver"])
        assert check.works
        assert "/home/u/.cache/execserver may hold no programs" in check.detail

    def test_the_folder_in_use_needs_no_excuse(self) -> None:
        folder = b"/home/u/.cache/execserver"
        assert program_files(folder + b"/hash", [folder]).detail == "/home/u/.cache/execserver/hash"

    def test_unpacking_places_are_those_of_the_one_file(self, tmp_path: Path) -> None:
        home = os.fsencode(tmp_path)
        assert unpacking_places({b"EXECSERVER_CACHE_DIR": b"/c", b"HOME": home}) == [b"/c"]
        assert unpacking_places({b"XDG_CACHE_HOME": b"/x", b"HOME": home}) == [
            b"/x/execserver",
            home + b"/.cache/execserver",
        ]
        assert unpacking_places({b"HOME": home + b"/missing"}) == []
