"""Signals that a verb was started to ignore, as by `nohup` or in the background of a script, end nothing."""

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
