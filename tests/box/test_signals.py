"""Signals that a verb was started to ignore, as by `nohup`, and those that end a command on a terminal."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess

import pytest

from tests.box.boxes import Person
from tests.support.relay_process import program
from tests.support.server_process import ServerProcess

WAIT_S = 30.0
IGNORED = (signal.SIGHUP, signal.SIGINT)


def ignoring(person: Person, *words: str) -> subprocess.Popen[bytes]:
    """Start a command line as `nohup` and the background of a script do."""
    script = f"trap '' {' '.join(str(int(number)) for number in IGNORED)}; exec \"$@\""
    return subprocess.Popen(
        ["sh", "-c", script, "sh", *program(), *words],
        env=person.environ,
        cwd=person.home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def check_that_it_ignores(pid: int) -> None:
    """Send the signals; that nothing ends by them shows later only, what is ignored at once."""
    for number in IGNORED:
        os.kill(pid, number)
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        (mask,) = (int(line.split()[1], 16) for line in file if line.startswith("SigIgn:"))
    assert all(mask & 1 << number - 1 for number in IGNORED)


@pytest.mark.parametrize("has_box", [True, False])
def test_a_command_goes_on(person: Person, server: ServerProcess, has_box: bool) -> None:
    box = (server.url,) if has_box else ()
    run = ignoring(person, "run", *box, "--", "sh", "-c", "echo up; read x; echo got $x; exit 5")
    assert run.stdout is not None
    assert run.stdout.readline() == b"up\n"
    check_that_it_ignores(run.pid)
    assert run.communicate(b"this\n", WAIT_S) == (b"got this\n", b"")
    assert run.returncode == 5


@pytest.mark.parametrize("verb", ["forward", "web"])
def test_what_serves_goes_on(person: Person, server: ServerProcess, verb: str) -> None:
    words = {"forward": ["0:127.0.0.1:1"], "web": ["--no-open"]}[verb]
    serving = ignoring(person, verb, server.url, *words)
    assert serving.stdout is not None
    place = re.search(rb"127\.0\.0\.1:(\d+)", serving.stdout.readline())
    assert place is not None
    check_that_it_ignores(serving.pid)
    with socket.create_connection(("127.0.0.1", int(place[1])), WAIT_S) as sock:
        sock.sendall(b"\r\n\r\n")
        try:
            while sock.recv(4096):  # until the answer ends: both refuse this
                pass
        except ConnectionResetError:
            pass
    serving.terminate()
    assert serving.wait(WAIT_S) == 128 + signal.SIGTERM
    serving.communicate()


@pytest.mark.parametrize("has_box", [True, False])
def test_a_signal_on_a_terminal_is_told_by_the_status(
    person: Person, server: ServerProcess, has_box: bool
) -> None:
    box = (server.url,) if has_box else ()
    for script, keys, status in (
        ("echo up; exec sleep 60", b"\x03", 130),
        ("echo up; exec sleep 60", b"\x1c", 131),
        ("echo up; read x; kill -TERM $$", b"\r", 143),
        ("echo up; read x; exit 1", b"\r", 1),
    ):
        with person.at_terminal("run", *box, "--", "sh", "-c", script) as screen:
            screen.wait_for(b"up\r\n")
            screen.type(keys)
            assert screen.ended() == status


def test_who_comes_back_to_it_learns_the_same(person: Person, server: ServerProcess) -> None:
    person.environ["EXECSERVER_BOX"] = server.url
    assert person.run("run", "-d", "-t", "--name", "shut", "--", "sh", "-c", "echo up; cat").returncode == 0
    with person.at_terminal("attach", "shut") as screen:
        screen.wait_for(b"up\r\n")
        waiting = person.start("wait", "shut", stdin=subprocess.DEVNULL)
        assert person.run("kill", "-s", "KILL", "shut").returncode == 0
        assert screen.ended() == 137
    assert waiting.wait(WAIT_S) == 137
    waiting.communicate()
    assert person.run("wait", "shut").returncode == 137
    assert b"ended 137" in person.run("ps").stdout
