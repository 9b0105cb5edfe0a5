"""What a sandboxed command is given, what it finds inside, and how a start that fails is reported."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan import (
    FILTER_NONE,
    FILTER_PROXY_ROUTED,
    FILTER_RESTRICTED,
    NETWORK_HOST,
    READ,
    ROOT_EMPTY,
    WRITE,
    Missing,
    Mount,
    SandboxPlan,
)
from execserver.zygote.confinement import LANDLOCK, filtered, refused
from execserver.zygote.records import Failed, Started
from execserver.zygote.stages import STAGE_CWD, STAGE_EXEC, STAGE_ROOT
from tests.support.roots import OLD_KERNEL, USERS, give, identity, mount, plan
from tests.support.sandbox_init import MAKERS, program_of
from tests.zygote.confined_harness import ConfinedZygote, records_folder
from tests.zygote.harness import PATH
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


def test_a_program_with_a_name_too_long_to_exist_is_reported_as_such(zygote: ConfinedZygote) -> None:
    name = b"x" * 300
    status, out, err = zygote.run(name, plan=RO)
    assert (os.waitstatus_to_exitcode(status), out) == (101, b"")
    assert err == b"codex-linux-sandbox: Failed to execvp " + name + b": Filename too long (os error 36)\n"


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


def test_a_cwd_outside_of_the_view_makes_way_for_the_home_or_the_root(
    zygote: ConfinedZygote, ws: Path, tmp_path: Path
) -> None:
    away = tmp_path / "away"
    (away / "work").mkdir(parents=True)
    view = plan(Mount("hidden-directory", os.fsencode(away), b"", identity(away)))
    for home, place in ((ws, str(ws)), (away / "work", "/"), (Path("ws"), "/")):
        env = [b"PWD=/before", b"HOME=%b" % os.fsencode(home), b"PATH=/usr/bin:/bin"]
        script = [b"sh", b"-c", b"/bin/pwd; printenv PWD"]
        _, out, err = zygote.run(*script, plan=view, cwd=os.fsencode(away / "work"), env=env)
        assert (out.decode(), err) == (f"{place}\n{place}\n", b"")


def test_a_cwd_outside_of_the_view_is_missed_where_a_link_led_there(
    zygote: ConfinedZygote, ws: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "records")
    status, _, err = zygote.run(
        b"/bin/true", plan=plan(mount(WRITE, ws), root=ROOT_EMPTY), cwd=os.fsencode(link)
    )
    assert os.waitstatus_to_exitcode(status) == 1
    cwd = tmp_path / "records"
    assert err.decode() == f"codex-linux-sandbox: Can't chdir to {cwd}: No such file or directory\n"


def test_a_view_that_cannot_be_made_starts_nothing_and_says_why(zygote: ConfinedZygote, ws: Path) -> None:
    view = plan(mount(WRITE, ws))
    ws.rename(ws.with_name("moved"))
    assert zygote.root_refusal(view) == f"cannot mount {ws}: No such file or directory (openat2)"
    failed = zygote.refusal(b"/bin/true", plan=view)
    assert failed.stage == STAGE_ROOT
    assert zygote.sh("echo on", plan=RO) == (0, "on\n", "")


def test_a_refusal_is_a_child_that_says_so(zygote: ConfinedZygote) -> None:
    text = "error building bubblewrap command: cannot enforce"
    status, out, err = zygote.run(b"/bin/true", confinement=refused(text))
    assert (os.waitstatus_to_exitcode(status), out.decode(), err.decode()) == (1, "", text + "\n")
    with terminal() as (master, slave):
        started = zygote.ask(b"/bin/true", confinement=refused(text, 101), slave=slave)
        assert isinstance(started, Started)
        assert os.read(master, 1000).decode() == text + "\r\n"
        assert os.waitstatus_to_exitcode(zygote.exit_of(started.request_id).status) == 101


def test_a_deadline_that_has_passed_starts_nothing(zygote: ConfinedZygote) -> None:
    failed = zygote.refusal(b"/bin/true", plan=RO, deadline_ns=1)
    assert (failed.stage, failed.errno) == (STAGE_EXEC, 110)


def test_limits_are_those_of_plain_children_but_for_open_files(zygote: ConfinedZygote) -> None:
    script = "ulimit -Hn; ulimit -Sn; ulimit -a | grep -v files"
    hard, soft, *others = zygote.sh(script)[1].splitlines()
    # Some are left to who passes descriptors for the same user.
    room = int(hard) - min(2048, int(hard) // 4)
    assert zygote.sh(script, plan=RO)[1].splitlines() == [str(room), str(min(int(soft), room)), *others]


def test_missing_names_have_a_placeholder_while_the_command_runs(zygote: ConfinedZygote, ws: Path) -> None:
    missing = Missing(os.fsencode(ws / ".git"), identity(ws), True, True)
    view = SandboxPlan("read-only", (mount(WRITE, ws),), (missing,))
    code, out, err = zygote.sh(
        "ls -A; mkdir .git; touch .git/x; rmdir .git; echo $?", plan=view, cwd=os.fsencode(ws)
    )
    assert (code, out.split()) == (0, [".git", "1"])
    assert len(err.splitlines()) == 3
    assert list(ws.iterdir()) == []


def test_a_filter_without_a_view(zygote: ConfinedZygote, ws: Path) -> None:
    script = f"echo x > {ws}/x; grep -E 'NoNew|Seccomp:' /proc/self/status; ls /proc/self/fd;"
    script += "cut -d' ' -f 5,6 /proc/$$/stat"
    for chosen in (FILTER_RESTRICTED, FILTER_PROXY_ROUTED):
        code, out, err = zygote.sh(script, confinement=filtered(chosen))
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
            _, out, _ = zygote.run(
                b"/bin/grep", b"SigIgn", b"/proc/self/status", confinement=filtered(FILTER_RESTRICTED)
            )
    finally:
        signal.signal(signal.SIGQUIT, before)
    assert out.split() == [b"SigIgn:", b"0" * 16]


def test_a_filter_without_a_view_has_default_signals_and_reports_no_program(zygote: ConfinedZygote) -> None:
    _, out, _ = zygote.run(b"/bin/cat", b"/proc/self/status", confinement=filtered(FILTER_RESTRICTED))
    lines = dict(line.split(":\t") for line in out.decode().splitlines() if line.startswith("Sig"))
    assert {lines[name] for name in ("SigBlk", "SigIgn", "SigCgt")} == {"0" * 16}
    status, _, err = zygote.run(b"no-such-program", confinement=filtered(FILTER_RESTRICTED))
    assert (os.waitstatus_to_exitcode(status), b"Failed to execvp" in err) == (101, True)


def test_landlock_alone(zygote: ConfinedZygote, ws: Path, tmp_path: Path) -> None:
    view = plan(mount(WRITE, ws))
    code, _, err = zygote.sh(
        f"echo x > {ws}/x; echo x > {tmp_path}/x; cat /etc/passwd > /dev/null",
        plan=view,
        back_end=LANDLOCK,
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


def test_a_plan_that_is_none_is_refused(zygote: ConfinedZygote) -> None:
    failed = zygote.ask_worker(RO, [])
    assert isinstance(failed, Failed)
    assert failed.stage == STAGE_EXEC
