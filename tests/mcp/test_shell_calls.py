"""Whole calls: shell, supervisor, sandbox, rules and answers, as a client's call meets them.

That a program ran outside is told by a file it could write: the sandbox is read-only.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys

import gevent
import pytest
from gevent.event import Event

from execserver.mcp.elicitation import Answer, HostQuestion, Question
from execserver.mcp.tool import ToolError
from execserver.rules.policy import Rule
from tests.mcp.calling import Calls, Person, allow, forbid, prompt
from tests.support.proc import children_of

WORKSPACE = {"type": "workspace-write", "exclude_slash_tmp": True, "exclude_tmpdir_env_var": True}
FULL = {"type": "danger-full-access"}


def failing(calls: Calls, command: str, *rules: Rule, cancelled: Event | None = None) -> str:
    """Run a command that ends with an error; return its message."""
    with pytest.raises(ToolError) as raised:
        calls.run(command, *rules, cancelled=cancelled)
    return raised.value.message


def test_a_program_without_rule_runs_inside(calls: Calls) -> None:
    result = calls.run("exec 2>&1; touch f; echo $?", policy={"type": "read-only"})  # two pipes have no order
    assert result.exit_code == 0
    assert "Read-only file system" in result.output
    assert "1" in result.output.splitlines()


def test_an_allowed_program_runs_outside(calls: Calls) -> None:
    assert calls.run("touch f && echo made", allow("touch")).output == "made\n"
    assert (calls.folder / "f").exists()


def test_a_program_is_known_by_its_path_too(calls: Calls) -> None:
    assert calls.run("$(type -P touch) f", allow("touch")).exit_code == 0
    assert (calls.folder / "f").exists()


def test_a_relative_program_is_found_from_the_shells_folder(calls: Calls) -> None:
    folder = calls.folder / "sub"
    folder.mkdir()
    (folder / "runme").write_text("#!/bin/sh\ntouch made; echo in $(pwd)\n")
    (folder / "runme").chmod(0o755)
    result = calls.run("cd sub; ./runme", allow("runme"))
    assert (result.exit_code, result.output) == (0, f"in {folder}\n")
    assert (folder / "made").exists()


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_an_allowed_programs_exit_code_is_the_commands(calls: Calls, code: int) -> None:
    assert calls.run(f"sh -c 'exit {code}'", allow("sh")).exit_code == code


def test_an_allowed_program_that_a_signal_kills_is_seen_as_killed(calls: Calls) -> None:
    assert "137" in calls.run("sh -c 'kill -9 $$'; echo $?", allow("sh")).output.splitlines()


def test_a_forbidden_program_does_not_run(calls: Calls) -> None:
    result = calls.run("exec 2>&1; touch f; echo $?", forbid("touch"), policy=FULL)
    assert result.output == "Execution denied: Execution forbidden by policy\n1\n"
    assert not (calls.folder / "f").exists()


def test_a_missing_program_is_the_shells_to_tell(calls: Calls) -> None:
    result = calls.run("nosuchcommand-xyz", allow("nosuchcommand-xyz"))
    assert result.exit_code == 127
    assert result.output == "/bin/bash: line 1: nosuchcommand-xyz: command not found\n"


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        (Answer.ACCEPT, "0\n"),
        (Answer.DECLINE, "Execution denied: User declined execution\n1\n"),
        (Answer.CANCEL, "Execution denied: User cancelled execution\n1\n"),
    ],
)
def test_a_person_decides_what_a_rule_asks(calls: Calls, answer: Answer, output: str) -> None:
    person = Person(answer)
    result = calls.run("exec 2>&1; touch 'a b'; echo $?", prompt("touch"), ask=person.ask)
    assert result.output == output
    assert (calls.folder / "a b").exists() is (answer is Answer.ACCEPT)
    (question,) = person.asked
    assert question.file.endswith("/touch")
    assert question == Question(question.file, ["touch", "a b"], str(calls.folder))


def test_without_an_answer_nothing_runs(calls: Calls) -> None:
    result = calls.run("exec 2>&1; touch f; echo $?", prompt("touch"), ask=Person(Answer.FAILED).ask)
    assert result.output.endswith("1\n")
    assert not (calls.folder / "f").exists()


def test_a_dangerous_program_is_asked_about_and_then_runs_inside(calls: Calls) -> None:
    (calls.folder / "f").touch()
    person = Person(Answer.ACCEPT)
    result = calls.run("rm -f f; echo $?", ask=person.ask)
    assert len(person.asked) == 1
    assert "Read-only file system" in result.output
    assert (calls.folder / "f").exists()


def test_many_questions_are_open_at_the_same_time(calls: Calls) -> None:
    everyone = Event()

    def answer(question: Question) -> Answer:
        if len(person.asked) == 5:
            everyone.set()
        everyone.wait()
        return Answer.ACCEPT if question.argv[1] != "f3" else Answer.DECLINE

    person = Person(answer)
    script = "exec 2>&1; for n in 1 2 3 4 5; do touch f$n & done; wait; ls"
    result = calls.run(script, prompt("touch"), ask=person.ask)
    assert result.output.split("\n", 1)[1] == "f1\nf2\nf4\nf5\n"


@pytest.mark.parametrize(
    "command",
    [
        "sh -c 'touch f; exit 0'",
        "bash -c 'touch f && true'",
        f'{shlex.quote(sys.executable)} -c \'import subprocess; subprocess.run(["touch", "f"], check=True)\'',
        f'{shlex.quote(sys.executable)} -c \'import os; os.execvp("touch", ["touch", "f"])\'',
        "echo f | xargs touch",
        "env A=1 touch f",
        "(exec touch f)",
        "exec -a /elsewhere/touch touch f",
    ],
)
def test_children_of_any_program_are_seen(calls: Calls, command: str) -> None:
    assert calls.run(command, allow("touch")).exit_code == 0
    assert (calls.folder / "f").exists()


def test_pipes_redirects_and_further_descriptors_are_the_programs(calls: Calls) -> None:
    command = "printf 'b\\na\\n' | sort | { read x; cat - >&3; echo $x; } 3>&2 | tr a-z A-Z"
    result = calls.run(command, allow("sort"), allow("cat"), allow("tr"))
    assert sorted(result.output.split()) == ["A", "b"]


def test_a_here_document_and_input_redirects_reach_an_allowed_program(calls: Calls) -> None:
    assert calls.run("cat <<< one; cat < /etc/hostname | wc -l", allow("cat")).output == "one\n1\n"


def test_an_allowed_program_writes_where_the_shell_redirects_it(calls: Calls) -> None:
    result = calls.run("date > out && test -s out && echo written", allow("date"), policy=WORKSPACE)
    assert result.output == "written\n"


def test_the_environment_is_the_commands_own(calls: Calls) -> None:
    command = "export NEW='x y'; unset GONE; A=1 env"
    lines = calls.run(command, allow("env"), env={"GONE": "1", "KEPT": "1"}).output.splitlines()
    assert {"NEW=x y", "A=1", "KEPT=1", "CODEX_SANDBOX_NETWORK_DISABLED=1"} <= set(lines)
    assert not [line for line in lines if line.startswith(("GONE=", "CODEX_ESCALATE_SOCKET="))]


def test_a_large_environment_reaches_inside_and_outside(calls: Calls) -> None:
    env = {f"BIG{number}": "x" * 100_000 for number in range(3)}
    command = "env | grep -c ^BIG; printenv | grep -c ^BIG; sh -c 'printenv BIG1 | wc -c'"
    assert calls.run(command, allow("env"), env=env).output == "3\n3\n100001\n"


def test_background_jobs_and_traps_go_on_with_allowed_programs(calls: Calls) -> None:
    command = """
        trap 'echo trapped' USR1
        for n in $(seq 20); do /bin/true & done
        kill -USR1 $$
        wait; wait
        trap 'echo bye; exit 5' EXIT
        /bin/false || echo no
    """
    result = calls.run(command, allow("true"), allow("false"))
    assert (result.exit_code, result.output) == (5, "trapped\nno\nbye\n")


def test_a_signal_to_the_command_reaches_the_allowed_program(calls: Calls) -> None:
    command = "sleep 60 & kill -TERM $!; wait $!; echo $?"
    assert "143" in calls.run(command, allow("sleep")).output.splitlines()


def test_a_forbidden_program_deep_inside_leaves_the_rest_alone(calls: Calls) -> None:
    result = calls.run("exec 2>&1; sh -c 'id; uname -s'", forbid("id"))
    assert result.output == "Execution denied: Execution forbidden by policy\nLinux\n"


def test_what_looks_denied_by_the_sandbox_is_an_error(calls: Calls) -> None:
    error = calls.error("touch f")
    assert error.code == -32603
    assert error.message.startswith(
        "sandbox error: sandbox denied exec error, exit code: 1, stdout: , stderr: touch: cannot touch 'f'"
    )


def test_a_shell_that_a_signal_kills_is_an_error_with_its_output(calls: Calls) -> None:
    error = calls.error("echo before; kill -9 $$")
    assert error.message == "sandbox error: command was killed by a signal"
    assert error.data == {"output": "before\n", "timed_out": False, "exit_code": 137}


def test_time_that_is_up_ends_everything_and_keeps_the_output(calls: Calls) -> None:
    command = "echo begun; sleep 61 & setsid sh -c 'sleep 62; true' & sleep 63"
    error = calls.error(command, allow("sleep", "63"), timeout_ms=3000)
    assert error.message == "sandbox error: command timed out"
    assert error.data == {"output": "begun\n", "timed_out": True}
    assert calls.left() == []


def test_descendants_of_an_allowed_program_end_with_the_call(calls: Calls) -> None:
    script = calls.folder / "deep"
    script.write_text("#!/bin/sh\nsetsid sh -c 'trap \"\" TERM HUP; sleep 64; true' &\nsleep 65; true\n")
    script.chmod(0o755)
    error = calls.error("./deep", allow("deep"), timeout_ms=500)
    assert error.message == "sandbox error: command timed out"
    assert calls.left() == []


def test_jobs_left_in_the_background_end_with_the_shell(calls: Calls) -> None:
    result = calls.run("sleep 66 & setsid sleep 67 & echo bg", allow("sleep", "67"))
    assert result.output == "bg\n"
    assert calls.left() == []


def test_no_time_at_all_is_up_at_once(calls: Calls) -> None:
    assert calls.error("touch f", allow("touch"), timeout_ms=0).message == (
        "sandbox error: command timed out"
    )


def test_a_cancelled_call_ends_everything(calls: Calls) -> None:
    cancelled = Event()
    call = gevent.spawn(lambda: calls.run("sleep 68 & sleep 69", allow("sleep", "69"), cancelled=cancelled))
    calls.wait_for(lambda: len(calls.left()) >= 3)
    cancelled.set()
    with pytest.raises(ToolError):
        call.get(timeout=20)
    assert calls.left() == []


def test_an_open_question_ends_with_its_process(calls: Calls) -> None:
    withdrawn: list[Question | HostQuestion] = []

    def wait_for_ever(question: Question | HostQuestion) -> Answer:
        try:
            (calls.folder / "asked").touch()
            Event().wait()
        except gevent.GreenletExit:
            withdrawn.append(question)
            raise
        raise AssertionError

    script = "touch f & until [ -e asked ]; do :; done; kill -9 $!; wait $!; echo $?"
    result = calls.run(script, prompt("touch"), ask=wait_for_ever)
    assert "137" in result.output.splitlines()
    calls.wait_for(lambda: len(withdrawn) == 1)


@pytest.mark.parametrize("victim", ["supervisor", "first process", "shell"])
def test_nothing_is_left_after_a_kill(calls: Calls, victim: str) -> None:
    call = gevent.spawn(failing, calls, "setsid sleep 70 & sleep 71; true", allow("sleep", "71"))
    calls.wait_for(lambda: {"sleep 70", "sleep 71"} <= set(calls.commands()) and calls.supervisors)
    (supervisor,) = calls.supervisors
    first = next(pid for pid in children_of(supervisor) if children_of(pid))
    (shell,) = children_of(first)
    os.kill({"supervisor": supervisor, "first process": first, "shell": shell}[victim], signal.SIGKILL)
    assert call.get(timeout=20) == "sandbox error: command was killed by a signal"
    calls.wait_until_nothing_is_left()


def test_the_whole_path_counts_where_it_is_asked_for(calls: Calls) -> None:
    assert "Read-only" in calls.run("touch f; true", allow("touch"), full_path=True).output
    path = "/usr/bin/touch"
    assert calls.run(f"{path} f", allow(path), full_path=True).exit_code == 0
    assert (calls.folder / "f").exists()


def test_full_access_still_knows_rules(calls: Calls) -> None:
    result = calls.run("touch f; id; readlink /proc/self/ns/pid >&2", forbid("id"), policy=FULL)
    assert "forbidden by policy" in result.output
    assert (calls.folder / "f").exists()


def test_a_workspace_is_writable_below_its_folder_only(calls: Calls) -> None:
    result = calls.run("touch f && echo in; touch ../f 2>/dev/null || echo out", policy=WORKSPACE)
    assert result.output == "in\nout\n"
