"""How sandboxed commands end: by signals, by a kill, with their terminal; and what is left then."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.sandbox.plan import (
    WRITE,
    Missing,
    SandboxPlan,
)
from execserver.sandbox.plan_record import encode_plan
from execserver.zygote.confinement import NATIVE, Confinement
from execserver.zygote.records import SpawnRequest, Started
from tests.support.proc import descriptor_count, is_kept_ready, is_over
from tests.support.roots import USERS, give, identity, mount, plan
from tests.support.sandbox_init import MAKERS, program_of
from tests.support.waiting import wait_until
from tests.zygote.confined_harness import ConfinedZygote, records_folder
from tests.zygote.harness import PATH, read_to_end
from tests.zygote.terminals import terminal

pytestmark = pytest.mark.parametrize("user", USERS)
RO = plan()


@pytest.fixture(params=MAKERS)
def zygote(user: int, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ConfinedZygote]:
    """Return a zygote of the user, whose sandboxes a program of either kind makes."""
    program = program_of(request.param)
    with ConfinedZygote(user, folder=records_folder(tmp_path, user), program=program) as started:
        yield started


@pytest.fixture
def ws(tmp_path: Path, user: int) -> Path:
    """Return a folder of the user."""
    folder = tmp_path / "ws"
    folder.mkdir()
    return give(folder, user)


def quietly(zygote: ConfinedZygote, script: str, view: SandboxPlan = RO, **options: object) -> Started:
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    try:
        argv = (b"/bin/sh", b"-c", script.encode())
        started = zygote.ask(*argv, plan=view, descriptors=[null, null], **options)  # type: ignore[arg-type]
    finally:
        os.close(null)
    assert isinstance(started, Started), started
    return started


def test_a_signal_to_the_group_reaches_the_command(zygote: ConfinedZygote, ws: Path) -> None:
    script = f"trap 'echo got > {ws}/got; exit 5' TERM; touch {ws}/ready; while :; do sleep 0.01; done"
    started = quietly(zygote, script, plan(mount(WRITE, ws)))
    wait_until((ws / "ready").exists)
    assert zygote.signal(started.request_id, signal.SIGTERM).delivered
    assert os.waitstatus_to_exitcode(zygote.exit_of(started.request_id).status) == 5
    assert (ws / "got").exists()


def test_stopping_and_going_on_work(zygote: ConfinedZygote, ws: Path) -> None:
    started = quietly(zygote, f"touch {ws}/ready; sleep 0.05; echo x > {ws}/done", plan(mount(WRITE, ws)))
    wait_until((ws / "ready").exists)
    zygote.signal(started.request_id, signal.SIGSTOP)
    zygote.signal(started.request_id, signal.SIGCONT)
    assert zygote.exit_of(started.request_id).status == 0
    assert (ws / "done").exists()


def descendants(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found += [int(entry.name), *descendants(int(entry.name))]
    return found


ESCAPERS = "setsid sleep 1000 & (setsid sh -c 'trap : HUP TERM INT; sleep 1000 & sleep 1000' &) ; "
ESCAPED_SLEEPERS = 3


def _sleeps(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep")
    except OSError:
        return False


def escaped(pid: int) -> list[int]:
    """Return all that runs inside, once all of ESCAPERS does."""
    wait_until(lambda: sum(map(_sleeps, descendants(pid))) >= ESCAPED_SLEEPERS)
    return descendants(pid)


@pytest.mark.parametrize("end", ["exit 3", "kill -9 $$"])
def test_the_end_of_the_command_ends_everything_inside(zygote: ConfinedZygote, ws: Path, end: str) -> None:
    script = f"{ESCAPERS} touch {ws}/ready; read line < {ws}/pipe; {end}"
    os.mkfifo(ws / "pipe", 0o666)
    (ws / "pipe").chmod(0o666)
    started = quietly(zygote, script, plan(mount(WRITE, ws)))
    wait_until((ws / "ready").exists)
    inside = escaped(started.pid)
    assert len(inside) >= 4
    (ws / "pipe").write_text("go\n")
    zygote.exit_of(started.request_id)
    assert [pid for pid in inside if Path(f"/proc/{pid}").exists()] == []


def test_a_kill_ends_everything_inside(zygote: ConfinedZygote, ws: Path) -> None:
    started = quietly(zygote, f"{ESCAPERS} touch {ws}/ready; sleep 1000", plan(mount(WRITE, ws)))
    wait_until((ws / "ready").exists)
    inside = escaped(started.pid)
    zygote.signal(started.request_id, signal.SIGKILL)
    assert zygote.exit_of(started.request_id).status == signal.SIGKILL
    assert [pid for pid in inside if Path(f"/proc/{pid}").exists()] == []


def test_a_killed_zygote_takes_everything_inside_with_it(zygote: ConfinedZygote, ws: Path) -> None:
    started = quietly(zygote, f"{ESCAPERS} touch {ws}/ready; sleep 1000", plan(mount(WRITE, ws)))
    wait_until((ws / "ready").exists)
    inside = [started.pid, *escaped(started.pid)]
    os.kill(zygote.pid, signal.SIGKILL)
    zygote.reap()
    wait_until(lambda: not any(_alive(pid) for pid in inside))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_orphans_inside_are_reaped(zygote: ConfinedZygote) -> None:
    script = "for i in 1 2 3 4 5; do (true &) ; done; sleep 0.1; ls /proc | grep -c '^[0-9]'; "
    _, out, _ = zygote.sh(script, plan=RO)
    assert int(out) <= 5  # init, the shell, and the pipe's


def test_output_ends_when_the_command_closes_it(zygote: ConfinedZygote) -> None:
    out, err = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
    argv = (b"/bin/sh", b"-c", b"echo x; exec >&- 2>&-; sleep 1000")
    started: object = zygote.ask(*argv, plan=RO, descriptors=[out[1], err[1]])
    os.close(out[1])
    os.close(err[1])
    assert (read_to_end(out[0]), read_to_end(err[0])) == (b"x\n", b"")
    assert isinstance(started, Started)
    zygote.signal(started.request_id, signal.SIGKILL)
    zygote.exit_of(started.request_id)


def test_a_terminal_is_the_controlling_one(zygote: ConfinedZygote) -> None:
    script = b"tty; test -t 0 && test -t 1 && test -t 2 && echo all; echo direct > /dev/tty; echo $SHELL"
    with terminal() as (master, slave):
        started = zygote.ask(b"/bin/sh", b"-c", script, plan=RO, slave=slave)
        assert isinstance(started, Started), started
        assert zygote.exit_of(started.request_id).status == 0
        words = os.read(master, 1000).decode().split()
    assert words[:3] == ["/dev/console", "all", "direct"]
    assert words[3].startswith("/")  # a terminal has a SHELL


def test_job_control_works_in_a_shell(zygote: ConfinedZygote) -> None:
    if not os.access("/bin/bash", os.X_OK):
        pytest.skip("no /bin/bash here")
    shown = b""

    def until(text: bytes) -> None:
        nonlocal shown
        while text not in shown:
            shown += os.read(master, 4096)
        shown = shown.partition(text)[2]

    with terminal() as (master, slave):
        argv = (b"/bin/bash", b"--norc", b"-i")
        started = zygote.ask(*argv, plan=RO, slave=slave, env=[PATH, b"PS1=% "])
        until(b"% ")
        os.write(master, b"sleep 1000\n")
        until(b"sleep 1000\r\n")
        wait_until(lambda: _sleeps(os.tcgetpgrp(master)))
        os.write(master, b"\x1a")
        until(b"Stopped")
        os.write(master, b"fg\n")
        until(b"sleep 1000\r\n")
        wait_until(lambda: _sleeps(os.tcgetpgrp(master)))
        os.write(master, b"\x03")
        until(b"% ")
        os.write(master, b"echo code $?; exit 4\n")
        until(b"code 130")
        assert isinstance(started, Started)
        assert os.waitstatus_to_exitcode(zygote.exit_of(started.request_id).status) == 4


def test_a_signal_reaches_a_shell_that_has_left_the_group(zygote: ConfinedZygote) -> None:
    if not os.access("/usr/bin/perl", os.X_OK):
        pytest.skip("no /usr/bin/perl here")
    # Not bash itself: it looks at a signal that comes just before its read only after that read.
    shell = b"setpgrp(0, 0); $| = 1; print 'ready'; sleep 60"
    with terminal() as (master, slave):
        argv = (b"/usr/bin/perl", b"-e", shell)
        started = zygote.ask(*argv, plan=RO, slave=slave, env=[PATH])
        assert isinstance(started, Started)
        shown = b""
        while b"ready" not in shown:
            shown += os.read(master, 4096)
        assert zygote.signal(started.request_id, signal.SIGHUP).delivered
        assert zygote.exit_of(started.request_id).status & 0x7F == signal.SIGHUP


def test_a_signal_from_inside_does_not_go_round(zygote: ConfinedZygote) -> None:
    # To its own group, of which init is a member, and to init itself.
    script = "trap 'echo got' USR1; kill -USR1 0; kill -USR1 1; kill -TERM 1; kill -9 1; sleep 0.1; echo end"
    code, out, _ = zygote.sh(script, plan=RO)
    assert (code, out) == (0, "got\nend\n")


def test_a_hangup_of_the_terminal_ends_the_command(zygote: ConfinedZygote) -> None:
    with terminal() as (_, slave):
        started = zygote.ask(b"/bin/sleep", b"1000", plan=RO, slave=slave)
    assert isinstance(started, Started), started
    assert zygote.exit_of(started.request_id).status == signal.SIGHUP


def test_missing_names_leave_nothing_after_a_kill(zygote: ConfinedZygote, ws: Path) -> None:
    missing = Missing(os.fsencode(ws / ".git"), identity(ws), True, True)
    started = quietly(zygote, "sleep 1000", SandboxPlan("read-only", (mount(WRITE, ws),), (missing,)))
    assert [path.name for path in ws.iterdir()] == [".git"]
    zygote.signal(started.request_id, signal.SIGKILL)
    zygote.exit_of(started.request_id)
    assert list(ws.iterdir()) == []


def test_a_start_that_waits_takes_over_the_placeholders_of_what_has_just_ended(
    zygote: ConfinedZygote, ws: Path
) -> None:
    missing = Missing(os.fsencode(ws / ".git"), identity(ws), True, True)
    view = SandboxPlan("read-only", (mount(WRITE, ws),), (missing,))
    first = quietly(zygote, "sleep 1000", view)
    made = (ws / ".git").stat()
    os.kill(zygote.pid, signal.SIGSTOP)
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: is_over(first.pid))
    reader, writer = os.pipe2(os.O_CLOEXEC)
    argv = [b"/bin/sh", b"-c", b"stat -c %i .git"]
    confinement = Confinement(NATIVE, encode_plan(view))
    zygote.send(
        SpawnRequest(1000, argv, [PATH], os.fsencode(ws), None, b"", False, 0, confinement), [writer] * 2
    )
    os.close(writer)
    os.kill(zygote.pid, signal.SIGCONT)
    zygote.exit_of(first.request_id)
    zygote.exit_of(1000)
    with open(reader, "rb") as output:
        assert int(output.read()) == made.st_ino
    assert list(ws.iterdir()) == []


def test_many_starts_leave_nothing(zygote: ConfinedZygote, ws: Path) -> None:
    view = plan(mount(WRITE, ws))
    zygote.sh("true", plan=view)
    before = descriptor_count(zygote.pid)
    for _ in range(20):
        assert zygote.sh("true", plan=view)[0] == 0
    assert descriptor_count(zygote.pid) == before
    assert [pid for pid in descendants(zygote.pid) if not is_kept_ready(pid)] == []
