"""What becomes of the programs that a supervised shell, or anything below it, wants to run."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

from execserver.sandbox.kernel.syscalls import Kernel
from execserver.zygote.confinement import BUBBLEWRAP, LANDLOCK, NATIVE
from execserver.zygote.supervision.records import ACCEPT, CANCEL, DECLINE, FAILED, Question, Withdrawn
from execserver.zygote.supervision.stand_in.stand_ins import STAND_IN
from tests.support.sandbox_init import MAKERS
from tests.support.waiting import wait_until
from tests.zygote.supervised import (
    ENV,
    FULL_ACCESS,
    PLACES,
    Supervised,
    allow,
    forbid,
    prompt,
)

FILTERS = 'grep -E "^(Seccomp|NoNewPrivs):" /proc/self/status'
OUTSIDE = "NoNewPrivs:\t0\nSeccomp:\t0\n"
INSIDE = "NoNewPrivs:\t1\nSeccomp:\t2\n"


@pytest.fixture(params=MAKERS)
def maker(request: pytest.FixtureRequest) -> str:
    """Return what makes the sandboxes: Python, or the compiled template."""
    return str(request.param)


@pytest.mark.parametrize("place", PLACES)
def test_what_no_rule_names_runs_inside_and_what_is_allowed_outside(zygote: Supervised, place: str) -> None:
    script = f"{FILTERS}; echo; bash -c '{FILTERS}'; echo $?"
    assert zygote.call(script, allow("bash"), place=place) == (0, f"{INSIDE}\n{OUTSIDE}0\n", "")


@pytest.mark.parametrize("place", PLACES)
def test_a_forbidden_program_says_so_and_exits_with_1(zygote: Supervised, place: str) -> None:
    script = "uname; echo $?; id -u; echo $?"
    code, out, err = zygote.call(script, forbid("uname"), allow("id"), place=place)
    assert (code, out) == (0, f"1\n{_uid(zygote)}\n0\n")
    assert err == "Execution denied: Execution forbidden by policy\n"


def test_a_folder_that_is_not_in_the_view_makes_way_for_the_root_as_for_any_command(
    zygote: Supervised,
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.chmod(folder, 0o755)
        assert zygote.call("/bin/pwd", allow("true"), cwd=folder) == (0, "/\n", "")


def test_descendants_of_any_kind_are_watched(zygote: Supervised) -> None:
    script = f"""
    sh -c '{FILTERS}'
    env -u X {FILTERS}
    python3 -c 'import subprocess as s, os; s.run(["true"]); os.execv("/usr/bin/grep", ["g", "-c", "x"])'
    find /dev/null -exec true ';'
    """
    asked: list[str] = []

    def answer(question: Question) -> int:
        asked.append(f"{question.file.decode()} {b' '.join(question.argv[1:]).decode()}".strip())
        return DECLINE

    rules = prompt("grep"), prompt("true")
    zygote.call(script, *rules, answer=answer)
    filters = "-E ^(Seccomp|NoNewPrivs): /proc/self/status"
    assert asked == [
        f"/usr/bin/grep {filters}",
        f"/usr/bin/grep {filters}",
        "/usr/bin/true",
        "/usr/bin/grep -c x",
        "/usr/bin/true",
    ]


@pytest.mark.parametrize(
    ("answered", "out", "err"),
    [
        (ACCEPT, OUTSIDE + "0\n", ""),
        (DECLINE, "1\n", "Execution denied: User declined execution\n"),
        (CANCEL, "1\n", "Execution denied: User cancelled execution\n"),
        (FAILED, "1\n", "Execution denied: nobody could be asked for permission\n"),
    ],
)
def test_a_question_decides(zygote: Supervised, answered: int, out: str, err: str) -> None:
    asked: list[Question] = []

    def answer(question: Question) -> int:
        asked.append(question)
        return answered

    script = f"(cd /usr; {FILTERS}); echo $?"
    assert zygote.call(script, prompt("grep"), answer=answer) == (0, out, err)
    (question,) = asked
    assert question.argv[:2] == [b"grep", b"-E"]
    assert (question.file, question.workdir) == (b"/usr/bin/grep", b"/usr")


def test_dangerous_programs_run_inside_once_accepted(zygote: Supervised, tmp_path: Path) -> None:
    asked: list[Question] = []

    def answer(question: Question) -> int:
        asked.append(question)
        return ACCEPT

    code, _, err = zygote.call("rm -rf /usr/bin/env", answer=answer)
    assert len(asked) == 1
    assert (code, "Read-only file system" in err) == (1, True)


def test_questions_are_open_at_the_same_time(zygote: Supervised) -> None:
    with zygote.shell("(id -u; echo a) & (id -g; echo b) & echo c; wait", prompt("id")) as shell:
        shell.follow(lambda: len(shell.questions) == 2 and shell.out == "c\n")
        first, second = shell.questions
        shell.answer(second.number, DECLINE)
        shell.follow(lambda: shell.out.endswith(("a\n", "b\n")))
        shell.answer(first.number, DECLINE)
        assert shell.end() == 0
        assert sorted(shell.out) == sorted("a\nb\nc\n")


def test_without_a_server_nobody_can_be_asked(zygote: Supervised) -> None:
    with zygote.shell("read -t 0.2 < <(:); id; id; echo $?", prompt("id")) as shell:
        shell.sock.shutdown(2)
        assert shell.end() == 0
        assert shell.out == "1\n"
        assert shell.err == "Execution denied: nobody could be asked for permission\n" * 2


def test_a_question_of_a_killed_process_is_withdrawn(zygote: Supervised, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    script = f"id & until [ -e {asked} ]; do :; done; kill $!; wait $!; echo $?"
    with zygote.shell(script, prompt("id")) as shell:
        shell.follow(lambda: len(shell.questions) == 1)
        asked.touch()
        assert shell.end() == 0
        assert shell.out == "143\n"
        assert shell.messages == [shell.questions[0], Withdrawn(shell.questions[0].number)]


@pytest.mark.parametrize("place", PLACES)
def test_exit_codes_and_signals_are_those_of_the_program(zygote: Supervised, place: str) -> None:
    ends = "'exit 0' 'exit 7' 'exit 255' 'kill -TERM $$' 'kill -KILL $$'"
    script = f'for end in {ends}; do bash -c "$end"; echo $?; done 2>/dev/null'
    assert zygote.call(script, allow("bash"), place=place) == (0, "0\n7\n255\n143\n137\n", "")


def test_a_program_outside_has_what_it_would_have_inside(zygote: Supervised, tmp_path: Path) -> None:
    script = f"""
    cd {tmp_path}; exec 7<<<seven 9>&1; umask 027; export A='x y' B=; unset SHLVL
    trap '' HUP
    bash -c 'pwd; umask; echo "$0|$A|${{B-unset}}|${{BASH_EXEC_WRAPPER-unset}}"; cat <&7
      echo nine >&9; ls /proc/self/fd | wc -l; grep SigIgn /proc/self/status
      ps -o sid= -p $$ | tr -d " "; echo $$'
    """
    os.umask(own := os.umask(0))  # nothing outside is opened wider than the zygote would
    code, out, err = zygote.call(script, allow("bash"), env=[*ENV, b"BASH_EXEC_WRAPPER=/none"])
    *lines, session, pid = out.splitlines()
    assert lines == [
        *(str(tmp_path), f"{own | 0o027:04o}", "bash|x y||unset", "seven", "nine"),
        *("6", "SigIgn:\t0000000000000001"),
    ]
    assert (session, code, err) == (pid, 0, "")


def test_the_loader_listens_to_the_server_only(zygote: Supervised) -> None:
    script = "export LD_LIBRARY_PATH=/evil GCONV_PATH=/evil EXECSERVER_CACHE_DIR=/evil TMPDIR=/kept; env"
    _, out, _ = zygote.call(script, allow("env"), env=ENV)
    assert "/evil" not in out
    assert "TMPDIR=/kept" in out.splitlines()


def test_what_a_path_walk_tries_is_not_judged(zygote: Supervised, tmp_path: Path) -> None:
    (tmp_path / "id").write_text("no program")
    script = f"PATH=/none:{tmp_path}:/etc:/usr/bin; id -u; nope; echo $?; /etc/passwd; echo $?; /usr; echo $?"
    code, out, err = zygote.call(script, allow("id"), forbid("nope"), forbid("passwd"), forbid("usr"))
    assert (code, out) == (0, f"{_uid(zygote)}\n127\n126\n126\n")
    assert "denied: Execution" not in err


def test_a_program_that_is_not_the_same_outside_runs_inside(zygote: Supervised) -> None:
    script = f"cp /usr/bin/grep /dev/shm/grep; /dev/shm/{FILTERS}; cd /dev/shm; /usr/bin/{FILTERS}"
    assert zygote.call(script, allow("grep")) == (0, INSIDE * 2, "")


def test_relative_programs_are_found_from_where_the_process_stands(
    zygote: Supervised, user: int, tmp_path: Path
) -> None:
    script = tmp_path / "tool"
    script.write_text(f"#!/bin/sh\necho $0; {FILTERS}\n")
    script.chmod(0o755)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub").chmod(0o755)
    rules = allow(str(script)), forbid(str(tmp_path / "sub" / "tool"))
    text = f"cd {tmp_path}; ./tool; cd sub; .././tool; ../sub/../tool"
    code, out, err = zygote.call(text, *rules)
    assert (code, err) == (0, "")
    assert out == f"{script}\n{OUTSIDE}" * 3


def test_what_is_known_of_a_path_holds_for_no_other(zygote: Supervised) -> None:
    script = "/bin/echo a; /bin/echo b; /bin/../bin/uname; cd /bin; ./uname; ./echo c; /bin/echo d"
    _, out, err = zygote.call(script, forbid("uname"))
    assert out == "a\nb\nc\nd\n"
    assert err == "Execution denied: Execution forbidden by policy\n" * 2


def test_a_script_without_interpreter_is_the_shells_own(zygote: Supervised, tmp_path: Path) -> None:
    script = tmp_path / "tool"
    script.write_text(f"{FILTERS}\n")
    script.chmod(0o755)
    assert zygote.call(str(script), allow("tool")) == (0, INSIDE, "")


def test_a_program_that_cannot_be_executed_is_the_callers_error(zygote: Supervised, tmp_path: Path) -> None:
    script = tmp_path / "tool"
    script.write_text("#!/nowhere\n")
    script.chmod(0o755)
    code, out, err = zygote.call(f"{script}; echo $?", allow("tool"))
    assert (code, out) == (0, "126\n" if "bad interpreter" in err and "126" in out else out)
    assert out in ("126\n", "127\n")


def test_the_shell_can_replace_itself(zygote: Supervised) -> None:
    assert zygote.call("exec bash -c 'exit 5'", allow("bash")) == (5, "", "")
    assert zygote.call("exec id", forbid("id"))[0] == 1


@pytest.mark.parametrize(("kernel", "status"), [(Kernel(), 0), (Kernel([STAND_IN]), 143)])
def test_a_killed_caller_takes_its_program_along(
    user: int, tmp_path: Path, kernel: Kernel, status: int
) -> None:
    """The program handles the signal, and ends well: so does its stand-in, but not who waits in an exec."""
    ready, done = (give_file(tmp_path / name, user) for name in ("ready", "done"))
    trap = f'trap "echo term >> {done}; exit" TERM; echo x >> {ready}; while :; do sleep 0.02; done'
    script = f"""
    bash -c '{trap}' & while ! [ -s {ready} ]; do sleep 0.02; done; kill $!; wait $!; echo $?
    while ! [ -s {done} ]; do sleep 0.02; done; cat {done}
    """
    with Supervised(user, kernel, os.fsencode(tmp_path)) as zygote:
        assert zygote.call(script, allow("bash"), place=LANDLOCK)[:2] == (0, f"{status}\nterm\n")


def test_the_end_of_the_shell_ends_everything(zygote: Supervised, user: int, tmp_path: Path) -> None:
    pids = give_file(tmp_path / "pids", user)
    loop = f"echo $$ >> {pids}; setsid sleep 60 & echo $! >> {pids}; sleep 60; :"
    script = f"bash -c '{loop}' & while [ $(wc -l < {pids}) -lt 2 ]; do sleep 0.02; done"
    assert zygote.call(script, allow("bash"))[0] == 0
    assert _alive(pids) == []


@pytest.mark.parametrize("place", [NATIVE, BUBBLEWRAP, LANDLOCK, FULL_ACCESS])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_supervisor_ends_everything(
    zygote: Supervised, user: int, tmp_path: Path, place: str, signum: int
) -> None:
    pids = give_file(tmp_path / "pids", user)
    inside = give_file(tmp_path / "inside", user)
    loop = f"echo $$ >> {pids}; setsid sleep 60 & echo $! >> {pids}; sleep 60; :"
    script = f"bash -c '{loop}' & sh -c 'sleep 61' & sleep 62"
    with zygote.shell(script, allow("bash"), place=place, env=[*ENV, b"MARK=%d" % os.getpid()]) as shell:
        wait_until(lambda: len(pids.read_text().split()) == 2)
        os.kill(shell.pid, signum)
        assert shell.end() == -signal.SIGKILL
    wait_until(lambda: _alive(pids) == [])
    wait_until(lambda: _marked(b"MARK=%d" % os.getpid()) == [])
    assert inside.read_text() == ""


def give_file(path: Path, user: int) -> Path:
    """Return an empty file that everybody may write to."""
    path.touch()
    path.chmod(0o666)
    return path


def _alive(pids: Path) -> list[int]:
    return [int(pid) for pid in pids.read_text().split() if Path(f"/proc/{pid}/exe").exists()]


def _marked(entry: bytes) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if entry in (process / "environ").read_bytes().split(b"\0"):
                found.append(process.name)
        except OSError:
            pass
    return found


def _uid(zygote: Supervised) -> int:
    text = Path(f"/proc/{zygote.pid}/status").read_text()
    return int(text.partition("\nUid:")[2].split()[0])
