"""Which files a sandbox root shows and lets be written, and what it refuses to show."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan import (
    HIDDEN_DIRECTORY,
    HIDDEN_FILE,
    LINK,
    PASSAGE,
    READ,
    ROOT_EMPTY,
    ROOT_WRITABLE,
    WRITE,
    Mount,
)
from tests.sandbox.view_scene import KERNELS, workspace
from tests.support.roots import OLD_KERNEL, REFUSED, USERS, mount, plan, run

SYSTEM = [mount(READ, Path(os.path.realpath(path))) for path in ("/usr", "/lib", "/lib64", "/bin", "/etc")]
SYSTEM = list({item.path: item for item in SYSTEM}.values())
LINKS = [
    Mount(LINK, os.fsencode(path), os.readlink(os.fsencode(path)))
    for path in ("/lib", "/lib64", "/bin")
    if os.path.islink(path)
]

pytestmark = pytest.mark.parametrize("user", USERS)


@pytest.fixture
def ws(tmp_path: Path, user: int) -> Path:
    return workspace(tmp_path, user)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_workspace_is_writable_and_nothing_else(ws: Path, user: int, kernel: Kernel | None) -> None:
    view = plan(mount(WRITE, ws), mount(READ, ws / ".git"))
    script = "cat a.txt; for f in new .git/new ../new /etc/new /usr/new; do echo x > $f; done"
    outcome = run(view, script, user=user, cwd=ws, kernel=kernel)
    assert outcome.out == "hello"
    assert outcome.err.count("Read-only file system") == 4
    assert sorted(path.name for path in ws.iterdir() if path.is_file()) == [".env", "a.txt", "new"]
    assert list((ws / ".git").iterdir()) == []


@pytest.mark.parametrize("kernel", KERNELS)
def test_hidden_things_cannot_be_opened_or_listed(ws: Path, user: int, kernel: Kernel | None) -> None:
    view = plan(mount(WRITE, ws), mount(HIDDEN_DIRECTORY, ws / "secret"), mount(HIDDEN_FILE, ws / ".env"))
    script = "ls secret; cat secret/key; cat .env; echo x > .env; touch secret/x"
    script += "; rm .env; rmdir secret; mv secret s"
    outcome = run(view, script, user=user, cwd=ws, kernel=kernel)
    assert outcome.out == ""
    errors = outcome.err.splitlines()
    assert len(errors) == 8, errors
    assert [line.count("Permission denied") for line in errors[:3]] == [1, 1, 1]
    assert (ws / ".env").read_text() == "password"
    assert (ws / "secret" / "key").read_text() == "key"


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_passage_leads_to_what_is_mounted_below(ws: Path, user: int, kernel: Kernel | None) -> None:
    view = plan(mount(WRITE, ws), mount(PASSAGE, ws / "secret"), mount(WRITE, ws / "secret" / "inner"))
    script = "ls secret; cat secret/key; touch secret/x; echo made > secret/inner/x; ls secret/inner"
    outcome = run(view, script, user=user, cwd=ws, kernel=kernel)
    assert outcome.out == "x\n"
    assert [line.rpartition(": ")[2] for line in outcome.err.splitlines()] == [
        "Permission denied",
        "No such file or directory",
        "Read-only file system",
    ]
    assert (ws / "secret" / "inner" / "x").read_text() == "made\n"


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_empty_root_shows_only_what_is_mounted(ws: Path, user: int, kernel: Kernel | None) -> None:
    view = plan(*SYSTEM, *LINKS, mount(WRITE, ws), root=ROOT_EMPTY)
    script = (
        f"ls /; ls {ws.parent}; echo x > n; echo x > /x; mkdir {ws.parent}/x; ls -d /root /home /var; echo $?"
    )
    outcome = run(view, script, user=user, cwd=ws, kernel=kernel)
    top = {"dev", "proc", "usr", "etc", "lib", "lib64", "bin", ws.parts[1]}
    assert outcome.out.split() == [*sorted(top & set(outcome.out.split())), "ws", "2"]
    assert outcome.err.count("Read-only file system") == 2
    assert (ws / "n").read_text() == "x\n"
    assert not (ws.parent / "x").exists()


def test_a_writable_root_has_its_exceptions(ws: Path, user: int) -> None:
    view = plan(mount(READ, ws / ".git"), root=ROOT_WRITABLE)
    outcome = run(view, "echo x > new; echo x > .git/new; ls /dev | wc -l", user=user, cwd=ws)
    assert (ws / "new").exists()
    assert outcome.err.count("Read-only file system") == 1


def test_the_system_folder_is_read_only(user: int) -> None:
    outcome = run(plan(), "(: > /sys/kernel/uevent_helper); grep ' /sys ' /proc/self/mountinfo", user=user)
    assert "Read-only file system" in outcome.err
    assert all(line.split()[5].startswith("ro") for line in outcome.out.splitlines())


def test_no_set_user_id_program_and_no_device_works(ws: Path, user: int) -> None:
    outcome = run(plan(mount(WRITE, ws)), "awk '{print $5, $6}' /proc/self/mountinfo", user=user, cwd=ws)
    for line in outcome.out.splitlines():
        path, options = line.split()
        assert "nosuid" in options.split(","), line
        assert "nodev" in options.split(",") or path.startswith("/dev"), line


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", [READ, WRITE, HIDDEN_DIRECTORY])
def test_another_object_than_the_plan_was_made_for_is_refused(
    ws: Path, user: int, kernel: Kernel | None, kind: str
) -> None:
    view = plan(mount(WRITE, ws), mount(kind, ws / "secret"))
    (ws / "secret").rename(ws / "moved")
    (ws / "secret").mkdir()
    outcome = run(view, "touch ran", user=user, cwd=ws, kernel=kernel)
    assert outcome.status == REFUSED << 8
    text = f"cannot mount {ws}/secret: it is not what it was when the policy was resolved"
    assert outcome.refusal == text
    assert not (ws / "ran").exists()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", [READ, WRITE, HIDDEN_DIRECTORY])
def test_a_link_that_took_the_place_is_refused(ws: Path, user: int, kernel: Kernel | None, kind: str) -> None:
    view = plan(mount(WRITE, ws), mount(kind, ws / "secret"))
    (ws / "secret").rename(ws / "moved")
    (ws / "secret").symlink_to("moved")
    outcome = run(view, "true", user=user, cwd=ws, kernel=kernel)
    assert outcome.status == REFUSED << 8
    assert outcome.refusal.startswith(f"cannot mount {ws}/secret: Too many levels of symbolic links")


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_mount_that_vanished_is_refused_and_not_made(ws: Path, user: int, kernel: Kernel | None) -> None:
    view = plan(mount(WRITE, ws), mount(HIDDEN_DIRECTORY, ws / "secret" / "inner"))
    (ws / "secret" / "inner").rmdir()
    outcome = run(view, "true", user=user, cwd=ws, kernel=kernel)
    assert outcome.status == REFUSED << 8
    assert not (ws / "secret" / "inner").exists()


def test_no_mount_point_is_made_on_the_host(ws: Path, user: int) -> None:
    gone = Mount(READ, os.fsencode(ws / "a" / "b"), os.fsencode(ws / "sub"), mount(READ, ws / "sub").identity)
    outcome = run(plan(mount(WRITE, ws), gone), "true", user=user, cwd=ws)
    assert outcome.status == REFUSED << 8
    assert not (ws / "a").exists()


def test_the_host_sees_no_mount(ws: Path, user: int) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    run(plan(mount(WRITE, ws), mount(HIDDEN_FILE, ws / ".env")), "true", user=user, cwd=ws)
    assert Path("/proc/self/mountinfo").read_text() == before
    assert os.access(ws / ".env", os.R_OK)


def test_placeholders_come_on_top(ws: Path, user: int) -> None:
    (ws / ".agents").mkdir()
    (ws / ".agents").chmod(0o755)
    outcome = run(
        plan(mount(WRITE, ws)),
        "touch .agents/x; touch ok",
        user=user,
        cwd=ws,
        extra=[mount(READ, ws / ".agents")],
    )
    assert outcome.err.count("Read-only file system") == 1
    assert (ws / "ok").exists()


def test_the_mask_for_new_files_is_kept_and_does_not_harm_the_view(ws: Path, user: int) -> None:
    before = os.umask(0o077)
    try:
        outcome = run(plan(mount(WRITE, ws)), "umask; echo x > new; ls -d /dev/pts", user=user, cwd=ws)
    finally:
        os.umask(before)
    assert outcome.out.split() == ["0077", "/dev/pts"]
    assert (ws / "new").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("missing", [*((name,) for name in OLD_KERNEL[:5]), OLD_KERNEL[5:], OLD_KERNEL])
def test_a_kernel_that_really_lacks_calls_shows_the_same_view(
    ws: Path, user: int, missing: tuple[str, ...]
) -> None:
    view = plan(mount(WRITE, ws), mount(READ, ws / ".git"), mount(HIDDEN_FILE, ws / ".env"))
    script = "echo x > new; echo x > .git/n; echo x > /etc/n; cat .env;"
    script += "grep CapEff /proc/self/status; ls /proc/self/fd"
    outcome = run(view, script, user=user, cwd=ws, missing=missing)
    assert outcome.out.split() == ["CapEff:", "0000000000000000", "0", "1", "2", "3"], outcome
    assert outcome.err.count("Read-only file system") == 2
    assert outcome.err.count("Permission denied") == 1
    assert (ws / "new").exists()
