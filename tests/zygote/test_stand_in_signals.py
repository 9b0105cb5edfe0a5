"""Signals and job control: what a stand-in is sent reaches its program, and it does what its program does."""

from __future__ import annotations

import errno
import os
import platform
import signal
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from execserver.zygote.supervision.outside import Outside
from execserver.zygote.supervision.stand_in.code import CODES
from tests.support.waiting import wait_until
from tests.zygote.supervised import FULL_ACCESS, PLACES, Shell, Supervised, allow
from tests.zygote.test_stand_ins import script

pytestmark = pytest.mark.skipif(platform.machine() not in CODES, reason="there is no code for this CPU")

BASH, SLEEP = allow("bash"), allow("sleep")
START = Outside.start
# Of the signals that a process can catch: not those by which Bash itself cannot be told.
CAUGHT = [
    "HUP",
    "INT",
    "QUIT",
    "ILL",
    "TRAP",
    "ABRT",
    "BUS",
    "FPE",
    "USR1",
    "SEGV",
    "USR2",
    "PIPE",
    "ALRM",
    "TERM",
    "STKFLT",
    "CONT",
    "TSTP",
    "TTIN",
    "TTOU",
    "URG",
    "XCPU",
    "XFSZ",
    "VTALRM",
    "PROF",
    "WINCH",
    "IO",
    "PWR",
    "SYS",
    "RTMIN",
    "RTMAX",
]


@pytest.fixture(autouse=True)
def open_to_all(tmp_path: Path) -> None:
    """Let everybody write to the temporary folder, programs outside included."""
    tmp_path.chmod(0o777)


def state_of(pid: int) -> str:
    """Return the letter of a process's state; "" of none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _has_lines(shell: Shell, count: int) -> Callable[[], bool]:
    return lambda: len(shell.out.splitlines()) == count


def late(*words: Any) -> int:
    """Start a program, and have no turn for a while."""
    program = START(*words)
    time.sleep(0.5)
    return program


@pytest.mark.parametrize("place", PLACES)
def test_a_signal_that_comes_before_the_supervisor_has_its_turn_is_the_programs(
    user: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """On a busy machine the program may have said that it is ready long before its caller stands for it."""
    monkeypatch.setattr(Outside, "start", late)
    ready = tmp_path / "ready"
    program = f"trap 'exit 7' TERM; echo > {ready}; while :; do sleep 0.02; done"
    # The shell executes nothing meanwhile: that would wait for the supervisor.
    words = f'bash -c "{program}" & until [ -e {ready} ]; do :; done; kill $!; wait $!; echo $?'
    with Supervised(user, folder=os.fsencode(tmp_path)) as zygote:
        assert zygote.call(words, BASH, place=place)[:2] == (0, "7\n")


def test_a_program_that_cannot_be_started_is_one_after_its_caller_is_traced_too(
    user: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*words: object) -> int:
        raise OSError(errno.ENOEXEC, "refused")

    monkeypatch.setattr(Outside, "start", refuse)
    code = """
    for _ in range(20):
        try:
            subprocess.run(["/bin/sleep", "0"])
        except OSError as error:
            print(error.errno, end=" ")
    """
    with Supervised(user, folder=os.fsencode(tmp_path)) as zygote:
        assert zygote.call(script(code), SLEEP) == (0, f"{errno.ENOEXEC} " * 20, "")


@pytest.mark.parametrize("place", PLACES)
def test_every_signal_that_can_be_caught_is_passed_on(zygote: Supervised, place: str, tmp_path: Path) -> None:
    traps = "; ".join(f"trap 'echo {name}' {name}" for name in CAUGHT)
    program = (
        f"{traps}; echo ready; until [ -e {tmp_path}/go ]; do read -t 0.02 < {tmp_path}/fifo; done; exit 0"
    )
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "fifo").chmod(0o666)
    opened = os.open(tmp_path / "fifo", os.O_RDWR)
    code = f"""
    child = subprocess.Popen(["bash", "-c", {program!r}], stdout=subprocess.PIPE, text=True)
    heard = [child.stdout.readline().strip()]
    for name in {CAUGHT}:
        number = getattr(signal, "SIG" + name)
        child.send_signal(number)
        heard.append(child.stdout.readline().strip())
    print(heard == ["ready", *{CAUGHT}] or heard, child.poll())
    print("done", flush=True)
    child.wait()
    print(child.returncode)
    """
    try:
        with zygote.shell(script(code), BASH, place=place) as shell:
            shell.follow(lambda: "done" in shell.out)
            (tmp_path / "go").touch()
            assert shell.end() == 0, shell.err
            assert shell.out == "True None\ndone\n0\n"
    finally:
        os.close(opened)


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV", "PIPE", "ABRT", "RTMIN", "XCPU"])
def test_a_program_that_dies_of_a_signal_takes_its_stand_in_along(
    zygote: Supervised, name: str, tmp_path: Path
) -> None:
    code = f"""
    os.chdir("{tmp_path}")
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2) if os.geteuid() == 0 else 0
    ended = subprocess.run(["bash", "-c", "kill -{name} $$; sleep 60"]).returncode
    print(ended == -signal.SIG{name}, "core" in str(os.listdir(".")))
    """
    assert zygote.call(script(code), BASH) == (0, "True False\n", "")


def test_a_program_that_takes_back_what_was_ignored_takes_its_stand_in_along(zygote: Supervised) -> None:
    code = """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    program = ["env", "--default-signal=USR1", "bash", "-c", "kill -USR1 $$; sleep 60"]
    print(subprocess.run(program).returncode == -signal.SIGUSR1)
    """
    assert zygote.call(script(code), allow("env")) == (0, "True\n", "")


def test_every_exit_status_is_the_programs(zygote: Supervised) -> None:
    code = """
    codes = [*range(0, 256, 17), 1, 126, 127, 128, 129, 137]
    print([code for code in codes if subprocess.run(["bash", "-c", f"exit {code}"]).returncode != code])
    """
    assert zygote.call(script(code), BASH) == (0, "[]\n", "")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["STOP", "TSTP", "TTIN"])
def test_a_stop_stops_the_program_and_its_continuation_continues_it(
    zygote: Supervised, place: str, name: str, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    program = f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; read line; exit $line"
    code = f"""
    child = subprocess.Popen(["bash", "-c", {program!r}], stdin=subprocess.PIPE, process_group=0)
    while not os.path.exists("{pid_file}"):
        os.sched_yield()
    for _ in range(2):
        child.send_signal(signal.SIG{name})
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        print(os.WIFSTOPPED(status), os.WSTOPSIG(status) == signal.SIG{name}, flush=True)
        input()
        child.send_signal(signal.SIGCONT)
        _, status = os.waitpid(child.pid, os.WCONTINUED)
        print(os.WIFCONTINUED(status), flush=True)
        input()
    child.communicate(b"3\\n")
    print(child.returncode)
    """
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "fifo").chmod(0o666)
    opened = os.open(tmp_path / "fifo", os.O_RDWR)
    (tmp_path / "code").write_text("import os, signal, subprocess\n" + textwrap.dedent(code))
    (tmp_path / "code").chmod(0o644)
    text = f"exec python3 -I {tmp_path}/code < {tmp_path}/fifo"
    try:
        with zygote.shell(text, BASH, place=place) as shell:
            for count in (1, 3):
                shell.follow(_has_lines(shell, count))
                wait_until(lambda: state_of(int(pid_file.read_text())) == "T")
                os.write(opened, b"\n")
                shell.follow(_has_lines(shell, count + 1))
                wait_until(lambda: state_of(int(pid_file.read_text())) != "T")
                os.write(opened, b"\n")
            assert shell.end() == 0, shell.err
            assert shell.out == "True True\nTrue\n" * 2 + "3\n"
    finally:
        os.close(opened)


def test_a_program_that_stops_or_goes_on_by_itself_takes_its_stand_in_along(
    zygote: Supervised, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    code = f"""
    child = subprocess.Popen(["bash", "-c", "echo $$ > {pid_file}; kill -STOP $$; read x; exit 4"], stdin=-1)
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    print(os.WIFSTOPPED(status), flush=True)
    _, status = os.waitpid(child.pid, os.WCONTINUED)
    child.communicate(b"\\n")
    print(os.WIFCONTINUED(status), child.returncode, flush=True)
    """
    with zygote.shell(script(code), BASH) as shell:
        shell.follow(lambda: shell.out == "True\n")
        os.kill(int(pid_file.read_text()), signal.SIGCONT)
        assert shell.end() == 0
        assert shell.out == "True\nTrue 4\n"


def test_a_stopped_program_that_is_killed_ends_its_stand_in(zygote: Supervised, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = f"""
    child = subprocess.Popen(["bash", "-c", "echo $$ > {pid_file}; kill -STOP $$; exit 4"])
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    print(os.WIFSTOPPED(status), flush=True)
    print(child.wait(), flush=True)
    """
    with zygote.shell(script(code), BASH) as shell:
        shell.follow(lambda: shell.out == "True\n")
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        assert shell.end() == 0
        assert shell.out == "True\n-9\n"


def test_jobs_of_a_shell_are_stopped_and_brought_back(zygote: Supervised, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "fifo").chmod(0o666)
    text = f"""
    exec 7<>{tmp_path}/fifo
    set -m
    bash -c 'read -u 8 line; exit $line' 8< <(read -u 7; echo 6) &
    kill -TSTP %1; wait %1; echo $?
    bg %1 > /dev/null; echo >&7; wait %1; echo $?
    """
    code, out, err = zygote.call(text, BASH, place=FULL_ACCESS)
    assert (code, out) == (0, f"{128 + signal.SIGTSTP}\n6\n"), err


@pytest.mark.parametrize("ignored", ["TERM", "USR1", "ALRM"])
def test_what_was_ignored_does_not_end_a_program_that_does_not_handle_it(
    zygote: Supervised, ignored: str
) -> None:
    code = f"""
    signal.signal(signal.SIG{ignored}, signal.SIG_IGN)
    text = "trap 'kill -9 $!; echo heard; exit 5' USR2; sleep 60 & echo ready; wait"
    child = subprocess.Popen(["bash", "-c", text], stdout=subprocess.PIPE, restore_signals=False)
    print(child.stdout.readline())
    child.send_signal(signal.SIG{ignored})
    child.send_signal(signal.SIGUSR2)
    print(child.communicate()[0], child.returncode)
    """
    assert zygote.call(script(code), BASH) == (0, "b'ready\\n'\nb'heard\\n' 5\n", "")


def test_a_hangup_of_one_process_leaves_its_children_alone(zygote: Supervised) -> None:
    program = "trap 'echo heard' HUP; bash -c 'read x; echo child $x' & echo ready; wait; wait; echo end"
    code = f"""
    reader, writer = os.pipe()
    child = subprocess.Popen(["bash", "-c", {program!r}.replace("read x", f"read -u {{reader}} x")],
                             stdout=subprocess.PIPE, pass_fds=[reader])
    print(child.stdout.readline())
    child.send_signal(signal.SIGHUP)
    print(child.stdout.readline())
    os.write(writer, b"goes on\\n")
    print(child.communicate()[0], child.returncode)
    """
    wanted = "b'ready\\n'\nb'heard\\n'\nb'child goes on\\nend\\n' 0\n"
    assert zygote.call(script(code), BASH) == (0, wanted, "")
