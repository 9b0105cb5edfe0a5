"""The child of a zygote that forks sandboxes under the filter: what it makes, and what if it is lost."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.sandbox.kernel import seccomp
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan import FILTER_NONE, FILTER_OPEN, FILTER_RESTRICTED, NETWORK_HOST, WRITE
from execserver.zygote.confine import filter_template
from execserver.zygote.confine.filter_template import FilterTemplate
from execserver.zygote.confine.sandboxes import Sandboxes
from execserver.zygote.libc import Libc
from tests.support.proc import descriptors, is_filter_template, stat_fields
from tests.support.roots import FREE_UID, USERS, give, in_child, mount, plan
from tests.support.sandbox_init import MAKERS, program_of
from tests.support.waiting import wait_until
from tests.zygote.confined_harness import ConfinedZygote


def filter_templates(zygote: ConfinedZygote) -> list[int]:
    children = Path(f"/proc/{zygote.pid}/task/{zygote.pid}/children").read_text().split()
    return [int(pid) for pid in children if is_filter_template(int(pid))]


@pytest.fixture(params=MAKERS)
def program(request: pytest.FixtureRequest) -> bytes:
    """Return the path of the compiled template, or nothing for the one in Python."""
    return program_of(request.param)


@pytest.fixture(params=USERS)
def zygote(request: pytest.FixtureRequest, program: bytes) -> Iterator[ConfinedZygote]:
    with ConfinedZygote(request.param, program=program) as zygote:
        yield zygote


def test_one_process_forks_every_restricted_command(zygote: ConfinedZygote, tmp_path: Path) -> None:
    give(tmp_path, USERS[-1])
    assert filter_templates(zygote) == []
    seen = set()
    for view in (plan(), plan(mount(WRITE, tmp_path)), plan()):
        status, out, _ = zygote.sh("grep Seccomp_filters /proc/self/status", plan=view)
        assert status == 0
        seen.add(out.split()[-1])
        assert len(filter_templates(zygote)) == 1
    # Inherited, and not installed once more; test runs may be under a filter of their own.
    assert seen == {str(1 + own_filters())}


def own_filters() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("Seccomp_filters")), 0)


def test_each_filter_has_a_process_of_its_own(zygote: ConfinedZygote) -> None:
    open_ = plan(network=NETWORK_HOST, syscall_filter=FILTER_OPEN)
    count = "grep Seccomp_filters: /proc/self/status"
    for view in (open_, plan(), open_):
        status, out, _ = zygote.sh(count, plan=view)
        assert (status, out.split()[-1]) == (0, str(1 + own_filters()))
    assert len(filter_templates(zygote)) == 2


def test_commands_without_the_filter_are_forked_by_the_zygote(zygote: ConfinedZygote) -> None:
    view = plan(network=NETWORK_HOST, syscall_filter=FILTER_NONE)
    status, out, _ = zygote.sh("grep Seccomp: /proc/self/status", plan=view)
    assert (status, out.split()[-1]) == (0, "2" if own_filters() else "0")
    assert filter_templates(zygote) == []


@pytest.mark.skipif(
    os.geteuid() != 0, reason="an ordinary user cannot look into processes that do not let him"
)
def test_where_it_cannot_be_made_the_zygote_forks_the_command_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    of_tests, fork = os.getpid(), os.fork

    def refuse_in_zygotes() -> int:
        if os.getpid() == of_tests:
            return fork()
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refuse_in_zygotes)
    with ConfinedZygote() as zygote:
        assert zygote.sh("echo ran", plan=plan()) == (0, "ran\n", "")
        assert filter_templates(zygote) == []
        assert zygote.sh("echo again", plan=plan()) == (0, "again\n", "")


def test_it_holds_nothing_but_its_sockets_and_the_mount_table(program: bytes) -> None:
    with ConfinedZygote(program=program) as zygote:
        zygote.sh("true", plan=plan())
        (pid,) = filter_templates(zygote)
        wait_until(lambda: stat_fields(pid)[0] == "S")
        status = Path(f"/proc/{pid}/status").read_text()
        assert "NoNewPrivs:\t1" in status
        assert "Seccomp:\t2" in status
        wait_until(lambda: set(descriptors(pid)) == {0, 1, 2, 3, 4, 5})
        kinds = [what.partition(":")[0] for number, what in descriptors(pid).items() if number > 2]
        assert sorted(kinds) == [f"/proc/{pid}/mountinfo", "socket", "socket"]


def test_after_its_death_there_is_another(zygote: ConfinedZygote) -> None:
    assert zygote.sh("echo one", plan=plan())[:2] == (0, "one\n")
    (first,) = filter_templates(zygote)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: filter_templates(zygote) == [])
    assert zygote.sh("echo two", plan=plan())[:2] == (0, "two\n")
    assert filter_templates(zygote) not in ([], [first])


def test_it_ends_when_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch, program: bytes) -> None:
    monkeypatch.setattr(filter_template, "IDLE_MS", 1)
    with ConfinedZygote(USERS[-1], program=program) as zygote:
        # It may end between any two steps of the next start.
        for _ in range(30):
            assert zygote.sh("echo next", plan=plan())[:2] == (0, "next\n")
        wait_until(lambda: filter_templates(zygote) == [])


def test_it_dies_with_the_zygote(program: bytes) -> None:
    with ConfinedZygote(USERS[-1], program=program) as zygote:
        zygote.sh("true", plan=plan())
        (pid,) = filter_templates(zygote)
        os.kill(zygote.pid, signal.SIGKILL)
        wait_until(lambda: not is_filter_template(pid))


def test_commands_end_with_the_zygote_though_another_has_forked_them(tmp_path: Path, program: bytes) -> None:
    give(tmp_path, USERS[-1])
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o666)
    fifo.chmod(0o666)
    null = os.open("/dev/null", os.O_RDWR)
    with ConfinedZygote(USERS[-1], program=program) as zygote:
        script = f"exec 9<>{fifo}; sleep 4711".encode()
        zygote.ask(b"/bin/sh", b"-c", script, plan=plan(mount(WRITE, tmp_path)), descriptors=[null, null])
        (keeper,) = filter_templates(zygote)
        children = Path(f"/proc/{zygote.pid}/task/{zygote.pid}/children").read_text().split()
        (init,) = [int(pid) for pid in children if int(pid) != keeper and os.getsid(int(pid)) == int(pid)]
        os.kill(zygote.pid, signal.SIGKILL)
        wait_until(lambda: stat_fields(init) == [] or stat_fields(init)[0] == "Z")
    os.close(null)


def test_without_filters_there_is_no_such_process_and_nothing_runs() -> None:
    with ConfinedZygote(USERS[-1], Kernel(("seccomp",))) as zygote:
        assert "seccomp" in zygote.root_refusal(plan())
        assert filter_templates(zygote) == []


def test_a_filter_that_is_missing_is_noticed() -> None:
    def act() -> int:
        try:
            seccomp.check(Kernel())
        except PermissionError:
            return 7 << 8
        return 0

    if own_filters():
        pytest.skip("this test run is under a filter itself")
    assert in_child(act, FREE_UID if os.geteuid() == 0 else os.geteuid()).code == 7


def test_the_number_of_one_that_was_reaped_is_nobody_to_wait_for() -> None:
    template = FilterTemplate(Kernel(), Libc())
    template._pid = os.getpid()  # the number is another process's now
    template.forget(os.getpid() + 1)
    assert template._pid == os.getpid()
    template.forget(os.getpid())
    assert template._pid == 0
    assert template._ended_idle()


def test_many_starts_that_hold_their_descriptors_leave_the_rest_to_the_other_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sandboxes = Sandboxes(Libc(), program=b"/bin/true")
    asked: list[str] = []
    for template in sandboxes._compiled.values():
        monkeypatch.setattr(template, "start", lambda: asked.append("start"))
    sandboxes._beginning = dict.fromkeys(range(64))  # type: ignore[assignment]
    assert sandboxes.compiled_template(FILTER_RESTRICTED) is None
    assert asked == []
    sandboxes._beginning.popitem()
    sandboxes.compiled_template(FILTER_RESTRICTED)
    assert asked == ["start"]
