"""Commands that go on without a connection: started, listed, followed, taken over, waited for, ended."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from execserver.box.commands.kept import is_process_name, milliseconds
from execserver.box.commands.logs import last_lines
from execserver.client.rules.event_log import Output
from tests.box.boxes import Person, cut_way, mistaken
from tests.box.test_shell import wait_for_prompt
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

WAIT_S = 30.0


@pytest.fixture
def box(server: ServerProcess, person: Person) -> Iterator[str]:
    """The server as the default box, on which nothing is left."""
    person.environ["EXECSERVER_BOX"] = server.url
    yield server.url
    for each in listed(person):
        if each["running"]:
            person.run("kill", "-s", "KILL", str(each["process_id"]))


def listed(person: Person) -> list[dict[str, object]]:
    done = person.run("ps", "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def start(person: Person, name: str, script: str, *words: str) -> None:
    done = person.run("run", "-d", "--name", name, *words, "--", "sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{name}\n".encode(), b"")


def test_a_command_goes_on_alone_and_tells_all_later(person: Person, box: str) -> None:
    start(person, "job", "echo out; echo err >&2; read x; exit 3")
    assert person.run("wait", "job").returncode == 3
    logs = person.run("logs", "job")
    assert (logs.returncode, logs.stdout, logs.stderr) == (0, b"out\n", b"err\n")
    late = person.run("logs", "--tail", "1", "--since", "1h", "job")
    assert late.stdout + late.stderr in (b"out\n", b"err\n")  # two pipes have no order
    done = person.run("ps", box)
    assert b"job " in done.stdout
    assert b"ended 3" in done.stdout
    late = person.run("kill", "job")
    assert late.returncode == 1
    assert b"job has ended with status 3" in late.stderr


@pytest.mark.long
def test_what_only_the_disk_has_is_printed_too(person: Person, box: str) -> None:
    start(person, "much", "seq 1 400000; echo end")
    assert person.run("wait", "much").returncode == 0
    logs = person.run("logs", "much")
    assert logs.stderr == b""
    assert logs.stdout == b"".join(b"%d\n" % number for number in range(1, 400_001)) + b"end\n"
    assert person.run("logs", "--tail", "2", "much").stdout == b"400000\nend\n"
    with person.at_terminal("attach", "much") as screen:
        screen.wait_for(b"400000")
        assert screen.ended() == 0


@pytest.mark.long
def test_a_signal_reaches_it(person: Person, box: str) -> None:
    start(person, "sleeper", "trap 'echo usr1' USR1; echo up; while :; do sleep 0.1; done")
    follower = person.start("logs", "-f", box, "sleeper")
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"up\n"
    assert person.run("kill", "-s", "SIGUSR1", box, "sleeper").returncode == 0
    assert follower.stdout.readline() == b"usr1\n"
    assert person.run("kill", "-s", "kill", "sleeper").returncode == 0
    assert follower.wait(WAIT_S) == 0
    follower.communicate()
    assert person.run("wait", "sleeper").returncode == 137


@pytest.mark.long
def test_a_shell_is_left_and_found_again(person: Person, box: str) -> None:
    with person.at_terminal("shell", "--name", "mine") as screen:
        wait_for_prompt(screen)
        screen.type(b"X=kept\r~d")
        screen.wait_for(b"left running for 1 h; come back with: execserver attach ")
        assert screen.ended() == 0
        assert not screen.is_raw()
    with person.at_terminal("attach", "mine", rows=30, cols=90) as screen:
        screen.wait_for(b"ready")  # what was on the screen before
        # Its size changes twice, so that whatever is on it is drawn again.
        screen.type(b"\x15\rwhile [ \"$(stty size)\" != '30 90' ]; do sleep 0.1; done; echo $X si'z'ed\r")
        screen.wait_for(b"kept sized\r\n")
        with person.at_terminal("attach", "mine") as reader:
            reader.wait_for(b"somebody else writes to it")
            screen.type(b"echo see'n'\r")
            reader.wait_for(b"seen\r\n")
            with person.at_terminal("attach", "--take", "mine") as taker:
                wait_for_prompt(taker)
                taker.type(b"exit 6\r")
                assert taker.ended() == 6
            assert reader.ended() == 6
        assert screen.ended() == 6


@pytest.mark.long
def test_queries_of_the_past_are_not_put_to_the_terminal_again(person: Person, box: str) -> None:
    """It would answer them, and the answers would be typed into the shell."""
    asks = b"stty -echo; printf '\\033[6n\\033]11;?\\033%s' '\\'; echo asked; cat >got; echo a${x}live; cat\r"
    with person.at_terminal("shell", "--name", "asked") as screen:
        wait_for_prompt(screen)
        screen.type(asks)
        assert b"\x1b[6n\x1b]11;?\x1b\\asked" in screen.wait_for(b"asked\r\n")
        screen.type(b"\r~d")
        screen.wait_for(b"left running")
    with person.at_terminal("attach", "asked") as screen:
        shown = screen.wait_for(b"asked\r\n")
        assert b"\x1b[6n" not in shown
        assert b"\x1b]11" not in shown
        screen.type(b"\x04")
        screen.wait_for(b"alive\r\n")


@pytest.mark.long
def test_a_killed_client_leaves_its_shell_to_be_found(person: Person, box: str) -> None:
    with person.at_terminal("shell", "--name", "orphan") as screen:
        wait_for_prompt(screen)
        os.kill(screen.pid, signal.SIGKILL)
        assert screen.ended() == 128 + signal.SIGKILL
    with person.at_terminal("attach", "orphan") as screen:
        wait_for_prompt(screen)
        screen.type(b"exit\r")
        assert screen.ended() == 0


@pytest.mark.long
def test_a_shell_that_ends_leaves_no_session(person: Person, box: str, server: ServerProcess) -> None:
    with person.at_terminal("shell", "--name", "short") as screen:
        wait_for_prompt(screen)
        screen.type(b"exit\r")
        assert screen.ended() == 0
    assert [each for each in listed(person) if each["name"] == "short"] == []


@pytest.mark.long
def test_waiting_survives_a_lost_connection(person: Person, box: str, server: ServerProcess) -> None:
    start(person, "long", "while ! [ -e go ]; do sleep 0.1; done; exit 8", "--cwd", str(person.home))
    with cut_way(server) as way:
        waiting = person.start("wait", way.url, "long")
        # Others may be there still: what was killed is listed until its session ends.
        wait_until(
            lambda: ("long", 1) in [(each["name"], each["watchers"]) for each in listed(person)], WAIT_S
        )
        way.cut()
        wait_until(lambda: way.connections == 2, WAIT_S)
        (person.home / "go").touch()
        assert waiting.wait(WAIT_S) == 8
        waiting.communicate()


def test_whoever_waits_is_told_which_limit_ended_it(person: Person, box: str) -> None:
    done = person.run("run", "-d", "--name", "limited", "--limit", "time=2s", "--", "sleep", "60")
    assert done.returncode == 0
    for _ in range(2):  # while it runs, and when it has ended
        done = person.run("wait", "limited")
        assert (done.returncode, done.stderr) == (
            137,
            b"execserver: the command ended because its time of 2 s was over\n",
        )


def test_what_is_not_there_is_told_with_a_cure(person: Person, box: str) -> None:
    done = person.run("attach", "nothing")
    assert done.returncode == 1
    assert b"there is no command nothing\n  What to do: `execserver ps`" in done.stderr


def test_nothing_goes_on_without_a_server_that_listens(person: Person) -> None:
    done = person.run("run", "-d", "--", "true")
    assert done.returncode == 255
    assert b"let a server listen there" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["run", "--keep", "soon", "--", "x"], "invalid value 'soon' for '--keep <TIME>'"),
        (["run", "--name", "-x", "--", "x"], "unexpected argument '-x' found"),
        (["run", "--name", "a b", "--", "x"], "invalid value 'a b' for '--name <NAME>'"),
        (["kill", "-s", "FOO", "x"], "invalid value 'FOO'"),
        (["logs", "--tail", "x", "y"], "invalid value 'x'"),
        (["logs", "--since", "x", "y"], "invalid value 'x'"),
        (["attach"], "a name is missing"),
        (["wait", "a", "b", "c"], "unexpected argument 'c'"),
        (["ps", "a", "b"], "unexpected argument 'b'"),
    ],
)
def test_wrong_usage_exits_with_2(
    words: list[str], text: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert text in mistaken(words, monkeypatch, capfd)


def test_spans_and_names() -> None:
    assert [milliseconds(text) for text in ("90s", "15m", "8h", "7d", "8", "-1s", "")] == [
        *(90_000, 900_000, 28_800_000, 604_800_000),
        *(None, None, None),
    ]
    assert is_process_name("a.b-c_d")
    assert not any(map(is_process_name, ("", "-a", ".a", "a b", "a" * 65, "a\n")))


@pytest.mark.parametrize(
    ("pieces", "count", "expected"),
    [
        ([b"a\nb\nc\n"], 2, b"b\nc\n"),
        ([b"a\nb\n", b"c\nd"], 2, b"c\nd"),
        ([b"a\n", b"b"], 1, b"b"),
        ([b"a\n", b"b\n"], 5, b"a\nb\n"),
        ([b"a\n"], 0, b""),
        ([], 3, b""),
    ],
)
def test_the_last_lines(pieces: list[bytes], count: int, expected: bytes) -> None:
    outputs = [Output(seq, "stdout", data) for seq, data in enumerate(pieces, 1)]
    assert b"".join(output.data for output in last_lines(outputs, count)) == expected
