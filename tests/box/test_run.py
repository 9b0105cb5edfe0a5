"""`execserver run` as a person uses it: over every kind of way, with pipes and at a terminal."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from execserver.box.commands.running import Command, params_ahead
from tests.box.boxes import Person, cut_way, mistaken, ssh_host, without_sshd
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

WAIT_S = 30.0


def check_streams_and_status(person: Person, *box: str) -> None:
    script = "cat; echo err >&2; exit 7"
    done = person.run("run", *box, "--", "sh", "-c", script, stdin=b"in\0\xff\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"in\0\xff\n", b"err\n")


def test_without_a_box_a_command_runs_here(person: Person) -> None:
    check_streams_and_status(person)
    assert person.run("run", "--", "pwd").stdout == f"{person.home}\n".encode()


def test_a_websocket_leads_to_a_box(person: Person, server: ServerProcess) -> None:
    check_streams_and_status(person, server.url)
    assert person.run("run", "-n", "--", "cat", EXECSERVER_BOX=server.url).returncode == 0


@pytest.mark.long
def test_a_socket_file_leads_to_a_box(person: Person, socket_folder: str) -> None:
    with ServerProcess(listen=f"unix://{socket_folder}/s"):
        check_streams_and_status(person, f"unix:{socket_folder}/s")


@pytest.mark.skipif(bool(without_sshd()), reason=without_sshd() or "there is one")
def test_ssh_leads_to_a_box(person: Person, tmp_path: Path) -> None:
    front = ssh_host(tmp_path / "ssh host")
    person.environ["PATH"] = f"{front}:{person.environ['PATH']}"
    check_streams_and_status(person, "ssh:box")
    with person.at_terminal("run", "ssh:box", "--", "sh", "-c", "stty size; read x; echo got $x") as screen:
        screen.wait_for(b"24 80\r\n")
        screen.type(b"this\r")
        screen.wait_for(b"got this\r\n")
        assert screen.ended() == 0
    done = person.run("run", "ssh:nowhere.invalid", "--", "true")
    assert done.returncode == 255
    assert b"look at what ssh printed" in done.stderr


@pytest.mark.long
def test_a_signal_ends_a_command_with_its_number(person: Person, server: ServerProcess) -> None:
    assert person.run("run", server.url, "--", "sh", "-c", "kill -9 $$").returncode == 137


def test_a_command_that_is_not_there(person: Person, server: ServerProcess) -> None:
    done = person.run("run", server.url, "--", "/no/such")
    assert done.returncode == 127
    assert done.stderr.startswith(b"Error: cannot run /no/such in /")
    assert b"What to do: give the program's path" in done.stderr
    done = person.run("run", server.url, "--cwd", "/no/such", "--", "true")
    assert done.returncode == 127
    assert b"What to do: make that folder" in done.stderr
    assert person.run("run", server.url, "--", "/").returncode == 126


def test_folder_and_variables_are_the_persons(person: Person, server: ServerProcess) -> None:
    words = ("--cwd", "/usr/lib", "-e", "A=b=c", "--env", "B", "-eC=", "--env=D")
    script = 'pwd; echo "$A|$B|${C-unset}|${D-unset}"'
    done = person.run("run", server.url, *words, "--", "sh", "-c", script, B="mine")
    assert done.stdout == b"/usr/lib\nb=c|mine||unset\n"


@pytest.mark.long
def test_a_policy_holds_it_back(person: Person, server: ServerProcess, tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", Path("/usr/local/execserver-test")
    inside.mkdir()
    words = ("--sandbox", "read-only", "--cwd", str(inside))
    done = person.run("run", server.url, *words, "--", "sh", "-c", "echo x > f")
    assert done.returncode != 0
    assert not (inside / "f").exists()
    words = ("--sandbox", "workspace-write", "--cwd", str(inside))
    done = person.run("run", server.url, *words, "--", "sh", "-c", f"echo x > f; echo x > {outside}")
    if b"no sandbox can enforce" in done.stderr:
        pytest.skip("no sandbox works here")
    assert (inside / "f").read_text() == "x\n"
    assert not outside.exists()
    assert person.run("run", server.url, *words, "--", "/no/such").returncode == 101  # as the contract has it


TIME_IS_OVER = b"execserver: the command ended because its time of 300 ms was over\n"


def test_a_limit_holds_and_the_end_says_which(person: Person, server: ServerProcess) -> None:
    script = "ulimit -n; exec sleep 60"
    words = ("--limit", "time=9s", "--limit=time=300ms", "--limit", "open-files=77")
    done = person.run("run", server.url, *words, "--", "sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (137, b"77\n", TIME_IS_OVER)
    done = person.run("run", "--limit=time=300ms", "--", "sleep", "60")
    assert (done.returncode, done.stderr) == (137, TIME_IS_OVER)


def test_who_ends_by_itself_or_by_a_signal_is_told_no_cause(person: Person, server: ServerProcess) -> None:
    for script, status in (("exit 137", 137), ("kill -15 $$", 143)):
        done = person.run("run", server.url, "--limit", "time=50s", "--", "sh", "-c", script)
        assert (done.returncode, done.stderr) == (status, b"")


def test_a_limit_that_the_box_refuses_starts_nothing(person: Person, server: ServerProcess) -> None:
    words = ("--limit", "time=999999d", "--", "touch", str(person.home / "ran"))
    done = person.run("run", server.url, *words)
    assert done.returncode == 126
    assert b"limits.wallMs must be between 1 and 31622400000" in done.stderr
    assert not (person.home / "ran").exists()


def test_the_terminal_is_as_before_when_the_end_is_told(person: Person, server: ServerProcess) -> None:
    words = ("shell", server.url, "--limit", "time=2s")
    with person.at_terminal(*words) as screen:
        screen.wait_for(b"execserver: the command ended because its time of 2 s was over\r\n")
        screen.ended()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["run", "--limit", "time", "--", "x"], "invalid value 'time' for '--limit <NAME=VALUE>': expected"),
        (["shell", "--limit=cores=2"], "expected one of memory, processes, cpu, time,"),
        (["run"], "a command is missing: write it behind `--`"),
        (["run", "box", "ls"], "unexpected argument 'ls' found (the command stands behind `--`)"),
        (["run", "--"], "a command is missing"),
        (["run", "--bogus", "--", "x"], "unexpected argument '--bogus' found"),
        (["run", "-t", "-T", "--", "x"], "cannot be used with"),
        (["run", "-e", "=x", "--", "x"], "invalid value '=x'"),
        (["run", "--sandbox", "none", "--", "x"], "[possible values: read-only,"),
        (["shell", "a", "b"], "unexpected argument 'b' found"),
    ],
)
def test_wrong_usage_exits_with_2(
    words: list[str], text: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert text in mistaken(words, monkeypatch, capfd)


def test_a_box_that_is_not_there_is_told_with_a_cure(person: Person) -> None:
    for box, cure in (
        ("ws://127.0.0.1:1", "start `execserver --listen URL` there"),
        ("unknown", "execserver box add unknown URL"),
        ("ftp://x", "a box is ws://"),
        ("relay:http://127.0.0.1:1/x", "give a token"),
    ):
        done = person.run("run", box, "--", "true")
        assert done.returncode == 255
        assert cure in done.stderr.decode(), done.stderr


def test_an_empty_box_is_not_this_machine(person: Person) -> None:
    for words in (("run", "", "--", "touch", "here"), ("find", "--box", "", ":.")):
        done = person.run(*words)
        assert done.returncode == 255
        assert done.stderr.startswith(b"Error: the box is empty\n  What to do: name a box;")
    assert not (person.home / "here").exists()
    assert person.run("run", "--", "true", EXECSERVER_BOX="").returncode == 0


def test_a_token_file_that_cannot_be_read_is_what_is_to_be_mended(
    person: Person, server: ServerProcess
) -> None:
    done = person.run("run", server.url, "--token-file", "/no/such", "--", "true")
    assert done.returncode == 255
    assert done.stderr.endswith(
        b"cannot read the token file /no/such: No such file or directory\n"
        b"  What to do: name a file that you can read and that has the token on one line\n"
    )


@pytest.mark.long
def test_much_goes_through_unchanged_both_ways(person: Person, server: ServerProcess) -> None:
    data = os.urandom(1 << 16) * 160  # 10 MiB
    done = person.run("run", server.url, "--", "cat", stdin=data)
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()


def test_who_reads_no_more_ends_it(person: Person, server: ServerProcess) -> None:
    run = person.start("run", server.url, "--", "yes")
    assert run.stdout is not None
    assert run.stdout.read(4) == b"y\ny\n"
    run.stdout.close()
    assert run.wait(WAIT_S) == 141
    run.communicate()


@pytest.mark.long
def test_unread_output_stops_the_command_and_not_the_signals(person: Person, server: ServerProcess) -> None:
    reading, writing = os.pipe()
    run = person.start("run", server.url, "--", "sh", "-c", "echo go >&2; exec yes", stdout=writing)
    os.close(writing)
    try:
        assert run.stderr is not None
        assert run.stderr.readline() == b"go\n"
        run.send_signal(signal.SIGINT)
        while os.read(reading, 1 << 20):
            pass
        assert run.wait(WAIT_S) == 130
    finally:
        os.close(reading)
        run.kill()
        run.communicate()


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGQUIT, 131, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long),
    ],
)
def test_signals_are_passed_on(
    person: Person, server: ServerProcess, number: signal.Signals, status: int
) -> None:
    run = person.start("run", server.url, "--", "sh", "-c", "echo up; exec sleep 60")
    assert run.stdout is not None
    assert run.stdout.readline() == b"up\n"
    run.send_signal(number)
    assert run.wait(WAIT_S) == status
    run.communicate()


@pytest.mark.long
def test_a_command_may_outlive_the_first_sigterm_and_not_this_program(
    person: Person, server: ServerProcess
) -> None:
    run = person.start(
        "run", server.url, "--", "sh", "-c", "trap 'echo caught' TERM; echo up; while :; do sleep 1; done"
    )
    assert run.stdout is not None
    assert run.stdout.readline() == b"up\n"
    run.terminate()
    assert run.stdout.readline() == b"caught\n"
    run.terminate()
    assert run.wait(WAIT_S) == 143
    run.communicate()


def test_a_lost_connection_is_resumed_in_silence(person: Person, server: ServerProcess) -> None:
    with cut_way(server) as proxy:
        run = person.start("run", proxy.url, "--", "sh", "-c", "echo up; read x; echo got $x; exit 5")
        assert run.stdout is not None
        assert run.stdin is not None
        assert run.stdout.readline() == b"up\n"
        proxy.cut()
        wait_until(lambda: proxy.connections == 2, WAIT_S)
        out, errors = run.communicate(b"this\n", WAIT_S)
        assert (run.returncode, out, errors) == (5, b"got this\n", b"")


@pytest.mark.long
def test_a_long_loss_is_told_in_one_line_and_can_be_given_up(person: Person, server: ServerProcess) -> None:
    with cut_way(server) as proxy:
        run = person.start("run", proxy.url, "--", "sh", "-c", "echo up; sleep 60")
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline() == b"up\n"
        proxy.refuse(True)
        proxy.cut()
        line = f"execserver: the connection to {proxy.url} is lost; trying to resume (^C ends)\n"
        assert run.stderr.readline() == line.encode()
        run.send_signal(signal.SIGINT)
        assert run.wait(WAIT_S) == 130
        assert run.communicate() == (b"", b"")


@pytest.mark.long
def test_a_box_that_dies_is_told(person: Person) -> None:
    with ServerProcess() as server:
        with cut_way(server) as proxy:
            run = person.start(
                "run", proxy.url, "--", "sh", "-c", "echo up; exec sleep 60", stdin=subprocess.DEVNULL
            )
            assert run.stdout is not None
            assert run.stdout.readline() == b"up\n"
            server.signal(signal.SIGKILL)
            server.wait()
            with ServerProcess() as other:
                proxy.lead_to(other.url)
                assert run.wait(WAIT_S) == 255
        _, errors = run.communicate()
    assert b"could not be resumed" in errors


@pytest.mark.long
def test_nothing_is_left_when_the_client_is_killed_with_its_private_server(
    person: Person, tmp_path: Path
) -> None:
    run = person.start("run", "--", "sh", "-c", "echo $$; exec sleep 60")
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    run.kill()
    run.communicate()
    wait_until(lambda: not os.path.exists(f"/proc/{pid}") or _is_another(pid), WAIT_S)


def _is_another(pid: int) -> bool:
    try:
        return b"sleep\x0060" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return True


def test_the_token_comes_from_a_file_or_the_environment(person: Person, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("abcdefgh-secret\n")
    words = ("--ws-auth", "capability-token", "--ws-token-file", str(secret))
    with ServerProcess(options=words) as server:
        refused = person.run("run", server.url, "--", "true")
        assert refused.returncode == 255
        assert b"give a token that counts there" in refused.stderr
        assert person.run("run", server.url, "--token-file", str(secret), "--", "true").returncode == 0
        given = person.run("run", server.url, "--", "true", EXECSERVER_TOKEN="abcdefgh-secret")
        assert given.returncode == 0
        add = ("box", "add", "mine", server.url, "--token-stdin")
        assert person.run(*add, stdin=b"abcdefgh-secret\n").returncode == 0
        assert person.run("run", "mine", "--", "true", EXECSERVER_TOKEN="wrong").returncode == 0
        listed = person.run("box", "list", "--json")
        assert listed.returncode == 0, listed.stderr
        (state,) = json.loads(listed.stdout)
        assert state["name"] == "mine"
        assert state["error"] is None
        assert state["answer_ms"] > 0
        assert "secret" not in listed.stdout.decode()
    listed = person.run("box", "list")
    assert listed.returncode == 1
    assert b"mine" in listed.stdout


class TestAtATerminal:
    def test_a_command_gets_one_of_the_same_size(self, person: Person, server: ServerProcess) -> None:
        script = "trap 'stty size' WINCH; echo $TERM; stty size; while ! read x; do :; done; test -t 2"
        with person.at_terminal("run", server.url, "--", "sh", "-c", script, rows=31, cols=99) as screen:
            screen.wait_for(b"xterm\r\n")
            screen.wait_for(b"31 99\r\n")
            screen.resize(40, 120)
            screen.wait_for(b"40 120\r\n")
            screen.type(b"x\r")
            assert screen.ended() == 0

    def test_control_c_is_a_key_for_the_command(self, person: Person, server: ServerProcess) -> None:
        script = "trap 'echo int; exit 3' INT; echo up; while :; do sleep 0.1; done"
        with person.at_terminal("run", server.url, "--", "sh", "-c", script) as screen:
            screen.wait_for(b"up\r\n")
            assert screen.is_raw()
            screen.type(b"\x03")
            screen.wait_for(b"int\r\n")
            assert screen.ended() == 3

    def test_there_is_none_where_output_goes_elsewhere(self, person: Person, server: ServerProcess) -> None:
        script = f"{sys.executable} -m execserver run {server.url} -- sh -c 'test -t 0 || echo none' | cat"
        assert person.run("run", "-t", server.url, "--", "test", "-t", "0").returncode == 0
        import ptyprocess

        spawned = ptyprocess.PtyProcess.spawn(["sh", "-c", script], env=person.environ, cwd=str(person.home))
        assert spawned.read(100) == b"none\r\n"
        spawned.wait()
        spawned.close()


@pytest.mark.parametrize(
    ("cwd", "sent"), [(None, "~"), ("~", "~"), ("", "~"), ("/usr/../a b", "file:///a%20b"), ("x", None)]
)
def test_a_command_goes_along_with_the_session_where_its_folder_needs_no_answer(
    cwd: str | None, sent: str | None
) -> None:
    ahead = params_ahead(Command(["true"], cwd))
    assert (None if ahead is None else ahead.cwd.uri) == sent


@pytest.mark.parametrize("asked", [{"sandbox": "read-only"}, {"limits": {"processes": 5}}, {"record": "all"}])
def test_what_a_box_might_not_understand_waits_for_its_answer(asked: dict[str, Any]) -> None:
    assert params_ahead(Command(["true"], **asked)) is None
