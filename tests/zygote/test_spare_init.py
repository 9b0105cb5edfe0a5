"""The spare init of a filter template: which starts it serves, and that they get no less than without it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan import WRITE
from execserver.zygote.confine import filter_template, spare, spare_init
from execserver.zygote.confine.spare_init import MountChanges
from tests.support.proc import children_of, descriptors, is_over, may_look_into
from tests.support.roots import USERS, give, in_child, mount, plan
from tests.support.sandbox_init import MAKERS, program_of
from tests.support.waiting import wait_until
from tests.zygote.confined_harness import ConfinedZygote

NEW_MOUNTS = 0x20000
PRIVATE, RECURSIVE = 1 << 18, 1 << 14


def spares(zygote: ConfinedZygote) -> list[int]:
    """Return the pids of the spares that a zygote has."""
    return [pid for pid in children_of(zygote.pid) if name_of(pid) == spare.NAME]


def name_of(pid: int) -> bytes:
    """Return the name of a process; nothing when it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_bytes().rstrip(b"\n")
    except OSError:
        return b""


def spare_of(zygote: ConfinedZygote) -> int:
    """Return the pid of the one spare, when there is one."""
    return wait_until(lambda: next(iter(spares(zygote)), 0))


def await_end(pid: int) -> None:
    """Wait until a process has ended."""
    wait_until(lambda: is_over(pid))


@pytest.fixture(params=MAKERS)
def program(request: pytest.FixtureRequest) -> bytes:
    """Return the path of the compiled template, or nothing for the one in Python."""
    return program_of(request.param)


@pytest.fixture(params=USERS)
def zygote(request: pytest.FixtureRequest, program: bytes) -> Iterator[ConfinedZygote]:
    with ConfinedZygote(request.param, program=program) as zygote:
        yield zygote


def test_a_spare_serves_one_start_and_another_stands_ready(zygote: ConfinedZygote) -> None:
    assert zygote.sh("echo one", plan=plan()) == (0, "one\n", "")
    seen = set()
    for number in range(4):
        spare = spare_of(zygote)
        assert spare not in seen
        seen.add(spare)
        assert zygote.sh(f"echo {number}", plan=plan()) == (0, f"{number}\n", "")
        assert is_over(spare)  # it was the init of that start


def test_another_plan_gets_what_it_says(zygote: ConfinedZygote, tmp_path: Path) -> None:
    give(tmp_path, USERS[-1])
    tmp_path.chmod(0o777)
    writable = plan(mount(WRITE, tmp_path))
    for _ in range(2):  # the second time both are known to the spare
        assert zygote.sh(f"echo x > {tmp_path}/x", plan=plan())[0] != 0
        spare_of(zygote)
        assert zygote.sh(f"echo x > {tmp_path}/x && rm {tmp_path}/x", plan=writable)[0] == 0
        spare_of(zygote)


def test_a_folder_that_was_replaced_since_is_refused(zygote: ConfinedZygote, tmp_path: Path) -> None:
    give(tmp_path, USERS[-1])
    tmp_path.chmod(0o777)
    for replace in (by_symlink, by_another):
        folder, other = tmp_path / replace.__name__, tmp_path / f"{replace.__name__}-other"
        for each in (folder, other):
            each.mkdir()
            each.chmod(0o777)
        view = plan(mount(WRITE, folder))
        assert zygote.sh(f"true > {folder}/x", plan=view)[0] == 0
        spare_of(zygote)
        replace(folder, other)
        assert f"cannot mount {folder}" in zygote.root_refusal(view)
        assert list(other.iterdir()) == []


def by_symlink(folder: Path, other: Path) -> None:
    folder.rename(folder.with_suffix(".before"))
    folder.symlink_to(other)


def by_another(folder: Path, other: Path) -> None:
    folder.rename(folder.with_suffix(".before"))
    folder.mkdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user may not mount")
def test_a_mount_that_came_since_is_there(tmp_path: Path, program: bytes) -> None:
    def act() -> int:
        kernel = Kernel()
        kernel.call("unshare", NEW_MOUNTS)
        kernel.call("mount", b"none", b"/", None, PRIVATE | RECURSIVE, None)
        with ConfinedZygote(program=program) as zygote:
            target = os.fsencode(tmp_path)
            mounting = ("mount", b"none", target, b"tmpfs", 0, None)
            # Without the look at the mounts, the folder below would be opened, which is not the plan's.
            for name, *given in (mounting, ("umount2", target, 0)):
                zygote.sh("true", plan=plan(mount(WRITE, tmp_path)))
                spare = spare_of(zygote)
                kernel.call(name, *given)
                now = os.stat(tmp_path).st_dev
                script = f"stat -c %d {tmp_path}"
                assert zygote.sh(script, plan=plan(mount(WRITE, tmp_path))) == (0, f"{now}\n", "")
                await_end(spare)  # it was not used
        return 0

    outcome = in_child(act)
    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user may not mount")
def test_every_change_of_mounts_is_told_once(tmp_path: Path) -> None:
    def act() -> int:
        kernel = Kernel()
        kernel.call("unshare", NEW_MOUNTS)
        kernel.call("mount", b"none", b"/", None, PRIVATE | RECURSIVE, None)
        changes, target = MountChanges(), os.fsencode(tmp_path)
        seen = [changes.are_there(), changes.are_there()]
        kernel.call("mount", b"none", target, b"tmpfs", 0, None)
        seen += [changes.are_there(), changes.are_there()]
        kernel.call("umount2", target, 0)
        seen += [changes.are_there(), changes.are_there()]
        os.write(1, repr(seen[1:]).encode())
        return 0

    assert in_child(act).out == repr([False, True, False, True, False])


def test_one_that_was_killed_is_not_missed(zygote: ConfinedZygote) -> None:
    zygote.sh("true", plan=plan())
    os.kill(spare_of(zygote), signal.SIGKILL)
    wait_until(lambda: not spares(zygote))
    assert zygote.sh("echo next", plan=plan()) == (0, "next\n", "")


@pytest.mark.parametrize("whose", ["zygote", "template"])
def test_it_ends_with_whoever_made_it(zygote: ConfinedZygote, whose: str) -> None:
    zygote.sh("true", plan=plan())
    spare = spare_of(zygote)
    template = next(pid for pid in children_of(zygote.pid) if pid != spare)
    os.kill(zygote.pid if whose == "zygote" else template, signal.SIGKILL)
    await_end(spare)


def test_an_old_one_is_not_used(monkeypatch: pytest.MonkeyPatch, program: bytes) -> None:
    monkeypatch.setattr(spare_init, "FRESH_S", 0.0)
    with ConfinedZygote(USERS[-1], program=program) as zygote:
        zygote.sh("true", plan=plan())
        spare = spare_of(zygote)
        status, _, _ = zygote.sh("true", plan=plan())
        assert status == 0
        await_end(spare)  # its socket has ended


def on_one_processor(zygote: ConfinedZygote) -> None:
    """Give a zygote that has no template yet one processor, and so its template."""
    os.sched_setaffinity(zygote.pid, [min(os.sched_getaffinity(zygote.pid))])


def test_on_one_processor_there_is_none_in_a_row_of_starts(
    monkeypatch: pytest.MonkeyPatch, program: bytes
) -> None:
    monkeypatch.setattr(filter_template, "QUIET_MS", 60_000)
    with ConfinedZygote(USERS[-1], program=program) as zygote:
        on_one_processor(zygote)
        for number in range(3):
            assert zygote.sh(f"echo {number}", plan=plan()) == (0, f"{number}\n", "")
            template, *others = children_of(zygote.pid)
            assert (name_of(template), others) == (filter_template.NAME, [])


def test_on_one_processor_one_is_made_when_nothing_else_is_to_do(program: bytes) -> None:
    with ConfinedZygote(USERS[-1], program=program) as zygote:
        on_one_processor(zygote)
        for number in range(3):
            assert zygote.sh(f"echo {number}", plan=plan()) == (0, f"{number}\n", "")
            spare = spare_of(zygote)
            assert zygote.sh("echo next", plan=plan()) == (0, "next\n", "")
            assert is_over(spare)  # it was the init of that start


def test_nobody_looks_into_it_and_it_holds_nothing(zygote: ConfinedZygote) -> None:
    zygote.sh("true", plan=plan())
    spare = spare_of(zygote)
    # Its files in /proc belong to root: it is not dumpable, from its first moment on.
    assert os.stat(f"/proc/{spare}/environ").st_uid == 0
    if may_look_into(spare):
        assert set(descriptors(spare)) == {0, 1, 2, 3}
        assert descriptors(spare)[3].startswith("socket:")
