from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from execserver.sandbox.plan import (
    FILTER_NONE,
    NETWORK_HOST,
    READ,
    ROOT_EMPTY,
    WRITE,
    Missing,
    Mount,
    ViewPlan,
)
from execserver.sandbox.syscalls import Kernel
from execserver.zygote.records import (
    BACK_END_LANDLOCK,
    SECCOMP_PROXY_ROUTED,
    SECCOMP_RESTRICTED,
    STAGE_CWD,
    STAGE_EXEC,
    STAGE_VIEW,
    Failed,
    Started,
)
from tests.support.proc import descriptor_count, is_filtered_parent
from tests.support.views import OLD_KERNEL, USERS, give, identity, mount, plan
from tests.support.waiting import wait_until
from tests.zygote.confined_harness import ConfinedZygote
from tests.zygote.harness import PATH, read_to_end

pytestmark = pytest.mark.parametrize("user", USERS)
RO = plan()


@pytest.fixture
def zygote(user: int, tmp_path: Path) -> Iterator[ConfinedZygote]:
    """Return a zygote of the user."""
    records = tmp_path / "records"
    records.mkdir(0o700)
    give(records, user)
    with ConfinedZygote(user, folder=os.fsencode(records)) as started:
        yield started


@pytest.fixture
def ws(tmp_path: Path, user: int) -> Path:
    """Return a folder of the user."""
    folder = tmp_path / "ws"
    folder.mkdir()
    return give(folder, user)


def quietly(zygote: ConfinedZygote, script: str, view: ViewPlan = RO, **options: object) -> Started:
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    try:
        argv = (b"/bin/sh", b"-c", script.encode())
        started = zygote.ask(*argv, plan=view, descriptors=[null, null], **options)  # type: ignore[arg-type]
    finally:
        os.close(null)
    assert isinstance(started, Started), started
    return started


@contextmanager
def terminal() -> Iterator[tuple[int, bytes]]:
    """Make a pty that the user can open; yield its master, and its slave's path."""
    master, slave = os.openpty()
    try:
        path = os.ttyname(slave).encode()
        if os.geteuid() == 0:
            os.fchmod(slave, 0o666)
        os.set_inheritable(slave, False)
        yield master, path
    finally:
        os.close(slave)
        os.close(master)


def test_the_command_has_no_privilege_and_no_way_to_one(zygote: ConfinedZygote) -> None:
    code, out, _ = zygote.sh("grep -E '^(Cap|NoNew|Seccomp:|Sig|ShdPnd)' /proc/self/status", plan=RO)
    lines = dict(line.split() for line in out.splitlines())
    assert code == 0
    for name in ("CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"):
        assert lines[name] == "0" * 16
    assert (lines["NoNewPrivs:"], lines["Seccomp:"]) == ("1", "2")


def test_the_command_has_default_signals_and_an_empty_mask(zygote: ConfinedZygote) -> None:
    status, out, _ = zygote.run(b"/bin/cat", b"/proc/self/status", plan=RO)
    lines = dict(line.split(":\t") for line in out.decode().splitlines() if line.startswith("Sig"))
    assert status == 0
    assert {lines[name] for name in ("SigBlk", "SigIgn", "SigCgt")} == {"0" * 16}


@pytest.mark.parametrize("stdin", [None, b"word"])
def test_the_command_has_three_descriptors(zygote: ConfinedZygote, stdin: bytes | None) -> None:
    _, out, _ = zygote.run(b"/bin/ls", b"-l", b"/proc/self/fd", plan=RO, stdin=stdin)
    links = [line.split()[-3::2] for line in out.decode().splitlines()[1:]]
    assert [number for number, _ in links] == ["0", "1", "2", "3"]  # the last is the listing's own
    kinds = [target.partition(":")[0] for _, target in links[:3]]
    assert kinds == ["/dev/null" if stdin is None else "pipe", "pipe", "pipe"]


def test_input_output_and_errors_are_connected(zygote: ConfinedZygote) -> None:
    assert zygote.sh("cat; echo out; echo err >&2; exit 7", plan=RO, stdin=b"in ") == (7, "in out\n", "err\n")


def test_environment_name_and_arguments_are_untouched(zygote: ConfinedZygote) -> None:
    env = [b"B=2", b"A=1", b"=odd", b"A=again", b"no-sign", PATH]
    _, out, _ = zygote.run(
        b"cat", b"/proc/self/environ", b"/proc/self/cmdline", plan=RO, env=env, arg0=b"cat me"
    )
    assert out.split(b"\0") == [*env, b"cat me", b"/proc/self/environ", b"/proc/self/cmdline", b""]


def test_the_process_tree_inside_is_init_and_the_command(zygote: ConfinedZygote) -> None:
    _, out, _ = zygote.sh("cut -d' ' -f 1,4-7 /proc/$$/stat", plan=RO)
    # pid, parent, group, session, terminal: the group and session are those of init.
    assert out.split() == ["2", "1", "1", "1", "0"]


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 1", 1), ("exit 255", 255)])
def test_exit_codes_are_the_commands(zygote: ConfinedZygote, script: str, status: int) -> None:
    assert zygote.sh(script, plan=RO)[0] == status


@pytest.mark.parametrize(
    "signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV, signal.SIGINT]
)
def test_a_signal_that_ends_the_command_is_its_status(zygote: ConfinedZygote, signum: int) -> None:
    assert zygote.sh(f"ulimit -c 0; kill -{int(signum)} $$", plan=RO)[0] == -signum


def test_a_program_that_is_not_there_is_reported_as_the_contract_says(zygote: ConfinedZygote) -> None:
    status, out, err = zygote.run(b"no-such-program", plan=RO)
    assert (os.waitstatus_to_exitcode(status), out) == (101, b"")
    assert (
        err
        == b"codex-linux-sandbox: Failed to execvp no-such-program: No such file or directory (os error 2)\n"
    )


def test_a_program_hidden_by_the_plan_is_not_there(zygote: ConfinedZygote, ws: Path, user: int) -> None:
    status, _, err = zygote.run(
        b"/bin/true", plan=plan(mount(WRITE, ws), root=ROOT_EMPTY), cwd=os.fsencode(ws)
    )
    assert os.waitstatus_to_exitcode(status) == 101
    assert b"No such file or directory (os error 2)" in err


def test_the_program_is_looked_up_inside_with_the_childs_path(
    zygote: ConfinedZygote, ws: Path, user: int
) -> None:
    (ws / "bin").mkdir()
    (ws / "bin" / "tool").write_text("#!/bin/sh\necho found $0\n")
    (ws / "bin" / "tool").chmod(0o755)
    give(ws, user)
    env = [b"PATH=/nonesuch:bin:/usr/bin:/bin"]
    _, out, _ = zygote.run(b"tool", plan=plan(mount(READ, ws)), env=env, cwd=os.fsencode(ws))
    assert out == b"found bin/tool\n"
    hidden = plan(Mount("hidden-directory", os.fsencode(ws / "bin"), b"", identity(ws / "bin")))
    status, _, err = zygote.run(b"tool", plan=hidden, env=env, cwd=os.fsencode(ws))
    assert os.waitstatus_to_exitcode(status) == 101
    assert b"Permission denied (os error 13)" in err


def test_a_cwd_that_does_not_exist_starts_nothing(zygote: ConfinedZygote) -> None:
    failed = zygote.refusal(b"/bin/true", plan=RO, cwd=b"/no/such/folder")
    assert (failed.stage, failed.errno) == (STAGE_CWD, 2)


def test_a_cwd_outside_of_the_view_is_reported_as_the_contract_says(
    zygote: ConfinedZygote, ws: Path, tmp_path: Path
) -> None:
    status, _, err = zygote.run(
        b"/bin/true", plan=plan(mount(WRITE, ws), root=ROOT_EMPTY), cwd=os.fsencode(tmp_path / "records")
    )
    assert os.waitstatus_to_exitcode(status) == 1
    cwd = tmp_path / "records"
    assert err.decode() == f"codex-linux-sandbox: Can't chdir to {cwd}: No such file or directory\n"


def test_a_view_that_cannot_be_made_starts_nothing_and_says_why(zygote: ConfinedZygote, ws: Path) -> None:
    view = plan(mount(WRITE, ws))
    ws.rename(ws.with_name("moved"))
    assert zygote.view_refusal(view) == f"cannot mount {ws}: No such file or directory (openat2)"
    failed = zygote.refusal(b"/bin/true", plan=view)
    assert failed.stage == STAGE_VIEW
    assert zygote.sh("echo on", plan=RO) == (0, "on\n", "")


def test_a_refusal_is_a_child_that_says_so(zygote: ConfinedZygote) -> None:
    text = b"error building bubblewrap command: cannot enforce"
    status, out, err = zygote.run(b"/bin/true", refusal=b"1 " + text)
    assert (os.waitstatus_to_exitcode(status), out, err) == (1, b"", text + b"\n")
    with terminal() as (master, slave):
        started = zygote.ask(b"/bin/true", refusal=b"101 " + text, slave=slave)
        assert isinstance(started, Started)
        assert os.read(master, 1000) == text + b"\r\n"
        assert os.waitstatus_to_exitcode(zygote.exit_of(started.request_id).status) == 101


def test_a_deadline_that_has_passed_starts_nothing(zygote: ConfinedZygote) -> None:
    failed = zygote.refusal(b"/bin/true", plan=RO, deadline_ns=1)
    assert (failed.stage, failed.errno) == (STAGE_EXEC, 110)


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
    wait_until(lambda: not any(_alive(pid) for pid in inside), 5)


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


def test_limits_are_those_of_plain_children_but_for_open_files(zygote: ConfinedZygote) -> None:
    script = "ulimit -Hn; ulimit -Sn; ulimit -a | grep -v files"
    hard, soft, *others = zygote.sh(script)[1].splitlines()
    # Some are left to who passes descriptors for the same user.
    room = int(hard) - min(2048, int(hard) // 4)
    assert zygote.sh(script, plan=RO)[1].splitlines() == [str(room), str(min(int(soft), room)), *others]


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


def test_missing_names_have_a_placeholder_while_the_command_runs(zygote: ConfinedZygote, ws: Path) -> None:
    missing = Missing(os.fsencode(ws / ".git"), identity(ws), True, True)
    view = ViewPlan("read-only", (mount(WRITE, ws),), (missing,))
    code, out, err = zygote.sh(
        "ls -A; mkdir .git; touch .git/x; rmdir .git; echo $?", plan=view, cwd=os.fsencode(ws)
    )
    assert (code, out.split()) == (0, [".git", "1"])
    assert len(err.splitlines()) == 3
    assert list(ws.iterdir()) == []


def test_missing_names_leave_nothing_after_a_kill(zygote: ConfinedZygote, ws: Path) -> None:
    missing = Missing(os.fsencode(ws / ".git"), identity(ws), True, True)
    started = quietly(zygote, "sleep 1000", ViewPlan("read-only", (mount(WRITE, ws),), (missing,)))
    assert [path.name for path in ws.iterdir()] == [".git"]
    zygote.signal(started.request_id, signal.SIGKILL)
    zygote.exit_of(started.request_id)
    assert list(ws.iterdir()) == []


def test_a_filter_without_a_view(zygote: ConfinedZygote, ws: Path) -> None:
    script = f"echo x > {ws}/x; grep -E 'NoNew|Seccomp:' /proc/self/status; ls /proc/self/fd;"
    script += "cut -d' ' -f 5,6 /proc/$$/stat"
    for chosen in (SECCOMP_RESTRICTED, SECCOMP_PROXY_ROUTED):
        code, out, err = zygote.sh(script, seccomp=chosen)
        words = out.split()
        assert (code, err) == (0, "")
        assert words[:4] == ["NoNewPrivs:", "1", "Seccomp:", "2"]
        assert words[4:8] == ["0", "1", "2", "3"]
        assert words[8] == words[9] != "0"
    assert (ws / "x").exists()


def test_a_filter_without_a_view_ignores_no_signal_that_its_server_ignores(user: int, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # as in the background of a script
    try:
        with ConfinedZygote(user, folder=os.fsencode(tmp_path)) as zygote:
            _, out, _ = zygote.run(b"/bin/grep", b"SigIgn", b"/proc/self/status", seccomp=SECCOMP_RESTRICTED)
    finally:
        signal.signal(signal.SIGQUIT, before)
    assert out.split() == [b"SigIgn:", b"0" * 16]


def test_a_filter_without_a_view_has_default_signals_and_reports_no_program(zygote: ConfinedZygote) -> None:
    _, out, _ = zygote.run(b"/bin/cat", b"/proc/self/status", seccomp=SECCOMP_RESTRICTED)
    lines = dict(line.split(":\t") for line in out.decode().splitlines() if line.startswith("Sig"))
    assert {lines[name] for name in ("SigBlk", "SigIgn", "SigCgt")} == {"0" * 16}
    status, _, err = zygote.run(b"no-such-program", seccomp=SECCOMP_RESTRICTED)
    assert (os.waitstatus_to_exitcode(status), b"Failed to execvp" in err) == (101, True)


def test_landlock_alone(zygote: ConfinedZygote, ws: Path, tmp_path: Path) -> None:
    view = plan(mount(WRITE, ws))
    code, _, err = zygote.sh(
        f"echo x > {ws}/x; echo x > {tmp_path}/x; cat /etc/passwd > /dev/null",
        plan=view,
        back_end=BACK_END_LANDLOCK,
    )
    if code and "not express" in err:
        pytest.skip("this kernel's Landlock does not serve")
    assert err.count("Permission denied") == 1
    assert (ws / "x").exists()


@pytest.mark.parametrize("without", [("clone3",), OLD_KERNEL], ids=["clone3", "all"])
def test_an_old_kernel_serves_too(user: int, ws: Path, without: tuple[str, ...]) -> None:
    with ConfinedZygote(user, Kernel(without)) as old:
        view = plan(mount(WRITE, ws))
        script = "echo x > new; echo y > /etc/new; ls /proc/self/fd; cat /dev/null"
        code, out, err = old.sh(script, plan=view, cwd=os.fsencode(ws))
    assert (code, out.split()) == (0, ["0", "1", "2", "3"])
    assert err.count("Read-only file system") == 1
    assert (ws / "new").exists()


def test_the_hosts_network_can_be_given(zygote: ConfinedZygote) -> None:
    view = plan(network=NETWORK_HOST, syscall_filter=FILTER_NONE)
    code, out, _ = zygote.sh("readlink /proc/self/ns/net; grep Seccomp: /proc/self/status", plan=view)
    assert (code, out.split()) == (0, [os.readlink("/proc/self/ns/net"), "Seccomp:", "0"])


def test_many_starts_leave_nothing(zygote: ConfinedZygote, ws: Path) -> None:
    view = plan(mount(WRITE, ws))
    zygote.sh("true", plan=view)
    before = descriptor_count(zygote.pid)
    for _ in range(20):
        assert zygote.sh("true", plan=view)[0] == 0
    assert descriptor_count(zygote.pid) == before
    assert [pid for pid in descendants(zygote.pid) if not is_filtered_parent(pid)] == []


def test_a_plan_that_is_none_is_refused(zygote: ConfinedZygote) -> None:
    failed = zygote.ask_worker(RO, [])
    assert isinstance(failed, Failed)
    assert failed.stage == STAGE_EXEC
