from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from execserver.zygote.groups import (
    all_processes,
    has_members,
    process_stat,
    signal_members,
    zombie_status,
)
from tests.support.waiting import wait_until


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[bytes]]:
    """A leader of an own session with one member besides itself."""
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True) as process:
        wait_until(lambda: len(members(process.pid)) == 2)
        yield process
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def members(group: int) -> list[int]:
    return [pid for pid, (state, _, own, _) in all_processes().items() if own == group and state != b"Z"]


def send(pidfd: int, signum: int) -> None:
    signal.pidfd_send_signal(pidfd, signum)


def test_the_stat_of_a_process() -> None:
    stat = process_stat(os.getpid())
    assert stat is not None
    assert stat[1:] == (os.getppid(), os.getpgid(0), os.getsid(0))
    assert process_stat(2**22 + 1) is None


def test_a_name_with_parentheses_does_not_confuse_the_stat(tmp_path: Path) -> None:
    program = tmp_path / "a) Z 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as process:
        stat = process_stat(process.pid)
        process.kill()
    assert stat is not None
    assert stat[1] == os.getpid()


def test_members_of_a_living_group_are_all_signalled(leader: subprocess.Popen[bytes]) -> None:
    assert signal_members(send, leader.pid, os.getpid(), signal.SIGTERM, leader_reaped=False)
    assert leader.wait() == -signal.SIGTERM
    wait_until(lambda: not members(leader.pid))


def test_a_group_whose_number_belongs_to_a_process_again_is_over(leader: subprocess.Popen[bytes]) -> None:
    """Seen from someone who reaped a leader of that number, the living leader is a stranger."""
    assert not signal_members(send, leader.pid, os.getpid(), signal.SIGTERM, leader_reaped=True)
    assert len(members(leader.pid)) == 2


def test_strangers_are_never_signalled(leader: subprocess.Popen[bytes]) -> None:
    """A process that does not descend from the root is no member."""
    assert not signal_members(send, leader.pid, leader.pid + 2**20, signal.SIGTERM, leader_reaped=False)
    assert len(members(leader.pid)) == 2


def test_a_group_exists_while_one_member_does(leader: subprocess.Popen[bytes]) -> None:
    assert has_members(leader.pid)
    os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()
    wait_until(lambda: not has_members(leader.pid))


def test_the_status_of_an_unreaped_child_is_seen_without_reaping_it() -> None:
    process = subprocess.Popen(["sh", "-c", "exit 7"])
    assert wait_until(lambda: zombie_status(process.pid, os.getpid())) == 7 << 8
    assert zombie_status(process.pid, os.getpid() + 1) is None
    assert process.wait() == 7
    assert zombie_status(process.pid, os.getpid()) is None


def test_a_running_child_has_no_status_yet() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert zombie_status(process.pid, os.getpid()) is None
        process.kill()


def test_a_scan_of_all_processes_is_quick_enough_for_rare_use() -> None:
    begin = time.perf_counter()
    assert os.getpid() in all_processes()
    assert time.perf_counter() - begin < 20
