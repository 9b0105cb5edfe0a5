"""A plan in bubblewrap's words, and which bubblewrap is taken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from execserver.sandbox.backends import bwrap
from execserver.sandbox.backends.bwrap import (
    Bwrap,
    Rejected,
    command_arguments,
    decode,
    encode,
    find,
    root_arguments,
)
from execserver.sandbox.plan import (
    FILTER_NONE,
    HIDDEN_DIRECTORY,
    HIDDEN_FILE,
    LINK,
    NETWORK_HOST,
    NETWORK_NONE,
    NETWORK_PROXY,
    PASSAGE,
    READ,
    ROOT_EMPTY,
    ROOT_HOST,
    ROOT_READ_ONLY,
    ROOT_WRITABLE,
    WRITE,
    Mount,
    PlanRefused,
    SandboxPlan,
)

PLAIN = Bwrap(b"/usr/bin/bwrap", (1, 2, 3, 4), False, "0.8.0")
SETUID = Bwrap(b"/usr/bin/bwrap", (1, 2, 3, 4), True, "0.8.0")
NEWEST = Bwrap(b"/usr/bin/bwrap", (1, 2, 3, 4), False, "0.11.0", True, True)
NEEDED = (
    "--args FD --seccomp FD --perms OCTAL --json-status-fd FD --cap-drop CAP --remount-ro DEST "
    "--disable-userns"
)


def words(plan: SandboxPlan, program: Bwrap = PLAIN, covers: tuple[Mount, ...] = ()) -> str:
    return b" ".join(root_arguments(plan, program, covers=covers, open_source=lambda _: 7)).decode()


def test_a_read_only_view_is_the_hosts_tree_with_devices_and_processes_of_its_own() -> None:
    assert words(SandboxPlan(ROOT_READ_ONLY)) == (
        "--new-session --die-with-parent --cap-drop ALL "
        "--unshare-user --disable-userns --unshare-pid --unshare-ipc --unshare-uts --unshare-net "
        "--ro-bind / / --dev /dev --perms 1777 --tmpfs /dev/shm --remount-ro /dev --proc /proc"
    )


def test_with_root_for_the_building_no_user_namespace_is_asked_for() -> None:
    assert "--unshare-user" not in words(SandboxPlan(ROOT_READ_ONLY), SETUID)


def test_the_network_of_the_host_is_kept_where_the_policy_grants_it() -> None:
    plan = SandboxPlan(ROOT_READ_ONLY, network=NETWORK_HOST, syscall_filter=FILTER_NONE)
    assert "--unshare-net" not in words(plan)


def test_writable_roots_come_before_what_is_protected_in_them() -> None:
    plan = SandboxPlan(
        ROOT_READ_ONLY,
        (
            Mount(WRITE, b"/w", b"/w", (1, 2, 3)),
            Mount(READ, b"/w/.git", b"/w/.git", (1, 2, 3)),
            Mount(HIDDEN_DIRECTORY, b"/w/secret", b"", (1, 2, 3)),
            Mount(HIDDEN_FILE, b"/w/key", b"", (1, 2, 3)),
        ),
    )
    assert words(plan).endswith(
        "--proc /proc --bind /w /w --ro-bind /w/.git /w/.git "
        "--perms 000 --tmpfs /w/secret --remount-ro /w/secret --ro-bind /dev/null /w/key"
    )


def test_stand_ins_for_missing_paths_are_bound_read_only_after_everything() -> None:
    plan = SandboxPlan(ROOT_READ_ONLY, (Mount(WRITE, b"/w", b"/w"),))
    cover = Mount(READ, b"/w/.codex", b"/w/.codex", (1, 2, 3))
    assert words(plan, covers=(cover,)).endswith("--bind /w /w --ro-bind /w/.codex /w/.codex")


def test_a_passage_stays_writable_until_all_below_it_is_mounted() -> None:
    plan = SandboxPlan(
        ROOT_READ_ONLY,
        (
            Mount(PASSAGE, b"/a"),
            Mount(PASSAGE, b"/a/b/c"),
            Mount(WRITE, b"/a/b/c/d", b"/a/b/c/d"),
            Mount(LINK, b"/a/l", b"b/c"),
        ),
    )
    assert words(plan).endswith(
        "--perms 111 --tmpfs /a --perms 111 --tmpfs /a/b/c --bind /a/b/c/d /a/b/c/d --symlink b/c /a/l "
        "--remount-ro /a/b/c --remount-ro /a"
    )


def test_an_empty_root_is_read_only_in_the_end() -> None:
    plan = SandboxPlan(ROOT_EMPTY, (Mount(READ, b"/usr", b"/usr"), Mount(LINK, b"/bin", b"usr/bin")))
    text = words(plan)
    assert "--tmpfs / --dev /dev" in text
    assert text.endswith("--ro-bind /usr /usr --symlink usr/bin /bin --remount-ro /")


def test_a_writable_root_is_bound_writable() -> None:
    assert "--bind / / --dev /dev" in words(SandboxPlan(ROOT_WRITABLE))


def test_descriptors_are_bound_where_bubblewrap_takes_them() -> None:
    plan = SandboxPlan(ROOT_READ_ONLY, (Mount(WRITE, b"/w", b"/w"), Mount(READ, b"/w/r", b"/w/r")))
    assert words(plan, NEWEST).endswith("--bind-fd 7 /w --ro-bind-fd 7 /w/r")


def test_trees_a_worker_needs_come_before_the_plans_mounts() -> None:
    plan = SandboxPlan(ROOT_EMPTY, (Mount(HIDDEN_DIRECTORY, b"/opt/x"),))
    text = b" ".join(root_arguments(plan, PLAIN, extra_readable=(b"/opt",)))
    assert text.index(b"--ro-bind /opt /opt") < text.index(b"--tmpfs /opt/x")


def test_the_network_of_a_managed_proxy_is_a_new_one() -> None:
    managed = SandboxPlan(ROOT_READ_ONLY, network=NETWORK_PROXY)
    assert words(managed) == words(SandboxPlan(ROOT_READ_ONLY, network=NETWORK_NONE))


def test_where_files_are_not_restricted_they_are_the_hosts() -> None:
    managed = SandboxPlan(ROOT_HOST, network=NETWORK_PROXY)
    assert words(managed).endswith("--unshare-net --dev-bind / / --proc /proc")


def test_variables_reach_the_command_and_not_bubblewrap() -> None:
    options = command_arguments([], PLAIN, cwd=b"/w", env=[b"LD_PRELOAD=/x.so", b"A=b=c", b"E="])
    assert options == [
        *(b"--chdir", b"/w"),
        *(b"--setenv", b"LD_PRELOAD", b"/x.so"),
        *(b"--setenv", b"A", b"b=c"),
        *(b"--setenv", b"E", b""),
    ]


@pytest.mark.parametrize("entry", [b"=x", b"alone", b""])
def test_variables_it_does_not_take_are_refused(entry: bytes) -> None:
    with pytest.raises(PlanRefused, match="without a name"):
        command_arguments([], PLAIN, cwd=b"/", env=[entry])


def test_another_name_for_the_command_is_given_where_that_is_possible() -> None:
    assert command_arguments([], NEWEST, cwd=b"/", env=[], arg0=b"-sh")[-2:] == [b"--argv0", b"-sh"]
    assert b"-sh" not in command_arguments([], PLAIN, cwd=b"/", env=[], arg0=b"-sh")


def test_more_arguments_than_it_takes_are_refused() -> None:
    bwrap.check_count([b"--dir"] * 4000, [b"true"])
    with pytest.raises(PlanRefused, match="9000"):
        bwrap.check_count([b"--dir"] * 9000, [b"true"])


@pytest.mark.parametrize("program", [PLAIN, SETUID, NEWEST])
def test_it_comes_back_from_its_bytes(program: Bwrap) -> None:
    again = decode(encode(program))
    assert encode(again) == encode(program)
    assert (again.path, again.identity) == (program.path, program.identity)


def test_bytes_that_name_none_are_refused() -> None:
    with pytest.raises(PlanRefused):
        decode(b"view1")


class TestHelp:
    def test_options_are_found_in_its_help(self) -> None:
        program = Bwrap(b"/b", (1, 2, 3, 4), False)
        assert program.take_help(f"usage: {NEEDED} --argv0 NAME --ro-bind-fd FD DEST") == ""
        assert program.argv0
        assert program.bind_fd

    def test_a_missing_one_is_named(self) -> None:
        assert Bwrap(b"/b", (1, 2, 3, 4), False).take_help(NEEDED.replace("--perms", "")) == "--perms"


class TestFinding:
    @pytest.fixture(autouse=True)
    def _as_root(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let everything belong to root, as far as these tests are concerned."""
        if os.geteuid() != 0:
            pytest.skip("only root can make files that belong to root")
        real = os.stat
        # Folders of tests lie in a temporary folder that everybody may write to.
        monkeypatch.setattr(bwrap, "_check_owners", _check_file_only)
        assert real("/").st_uid == 0

    def place(self, folder: Path, mode: int = 0o755) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / "bwrap"
        program.write_text("")
        program.chmod(mode)
        return program

    def path(self, *folders: Path) -> bytes:
        return os.fsencode(":".join(map(str, folders)))

    def found(self, search_path: bytes, cwd: Path) -> bytes | None:
        program = find(search_path, os.fsencode(cwd))
        return None if program is None else program.path

    def test_the_first_of_the_path_is_taken(self, tmp_path: Path) -> None:
        first, second = self.place(tmp_path / "1"), self.place(tmp_path / "2")
        assert self.found(self.path(first.parent, second.parent), Path("/")) == os.fsencode(first)

    def test_what_lies_below_the_working_directory_is_skipped(self, tmp_path: Path) -> None:
        near, far = self.place(tmp_path / "ws" / "bin"), self.place(tmp_path / "bin")
        (tmp_path / "ws" / "link").symlink_to("bin")
        search = self.path(near.parent, tmp_path / "ws" / "link", far.parent)
        assert self.found(search, tmp_path / "ws") == os.fsencode(far)

    def test_a_link_outside_that_leads_below_the_working_directory_is_skipped(self, tmp_path: Path) -> None:
        near = self.place(tmp_path / "ws" / "bin")
        (tmp_path / "outside").symlink_to(near.parent)
        assert self.found(self.path(tmp_path / "outside"), tmp_path / "ws") is None

    def test_the_root_as_working_directory_hides_nothing(self, tmp_path: Path) -> None:
        program = self.place(tmp_path / "bin")
        assert self.found(self.path(program.parent), Path("/")) == os.fsencode(program)

    def test_relative_folders_and_what_is_no_program_do_not_count(self, tmp_path: Path) -> None:
        self.place(tmp_path / "plain", 0o644)
        (tmp_path / "folder" / "bwrap").mkdir(parents=True)
        search = b"bin::" + self.path(tmp_path / "plain", tmp_path / "folder", tmp_path / "missing")
        assert self.found(search, Path("/")) is None

    def test_setuid_root_is_noticed(self, tmp_path: Path) -> None:
        program = find(self.path(self.place(tmp_path / "s", 0o4755).parent), b"/")
        assert program is not None
        assert program.setuid


class TestOwners:
    def test_what_another_user_could_replace_is_rejected(self, tmp_path: Path) -> None:
        program = tmp_path / "bwrap"
        program.write_text("")
        program.chmod(0o757)
        with pytest.raises(Rejected):
            bwrap._check_owners(os.fsencode(program), program.stat())

    def test_a_folder_another_user_could_write_to_is_rejected(self, tmp_path: Path) -> None:
        folder = tmp_path / "open"
        folder.mkdir()
        folder.chmod(0o777)
        program = folder / "bwrap"
        program.write_text("")
        with pytest.raises(Rejected):
            bwrap._check_owners(os.fsencode(program), program.stat())

    def test_what_only_root_can_replace_is_fine(self) -> None:
        bwrap._check_owners(b"/usr/bin/env", os.stat("/usr/bin/env"))


def _check_file_only(path: bytes, status: os.stat_result) -> None:
    assert status.st_uid == 0
