"""However the server ends, nothing it started is left."""

from __future__ import annotations

import os
import shlex
import signal
import time
import uuid
from pathlib import Path

import pytest

from tests.conftest import LONG
from tests.e2e.conftest import Connect, StartServer
from tests.support.peer import Peer
from tests.support.proc import is_over, marked, state, zygotes_of
from tests.support.producer import Producer
from tests.support.running import PATH, output_until, start
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

SHORT_GRACE = {"shutdown_grace_s": 0.3}
LONG_GRACE = {"shutdown_grace_s": 60.0}
LOSS_S = 2.0 if LONG else 20.0  # short runs share the machine
POLITE = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
pytestmark = pytest.mark.ours_only("the reference leaves grandchildren and stubborn children")

FOREVER = "while :; do sleep 0.02; done"
DEAF = "trap '' TERM INT HUP QUIT"


class Family:
    """Processes of every kind, found by a mark in their environment wherever they have gone."""

    def __init__(self, peer: Peer) -> None:
        self.mark = str(uuid.uuid4())
        self.peer = peer
        self._number = 0

    def add(self, script: str, *, traps: str = ":", tty: bool = False) -> int:
        """Start one more and return its id once it has set its traps and said so."""
        self._number += 1
        name = f"p{self._number}"
        start(self.peer, name, f"{traps}; echo $$; {script}", tty=tty, env=PATH | {"MARK": self.mark})
        return int(output_until(self.peer, name, b"\n"))

    def left(self) -> list[int]:
        """Return who still lives."""
        return marked(self.mark)

    def add_every_kind(self) -> None:
        """Add the easy and the hard ones."""
        self.add("exec sleep 100")
        self.add("exec sleep 100", tty=True)
        self.add(FOREVER, traps=DEAF)
        self.add(FOREVER, traps=DEAF, tty=True)
        self.add("setsid sleep 100 & exec sleep 100")
        self.add("setsid -f sh -c \"trap '' TERM HUP; sleep 100 & wait\"; exit 0")
        stopped = self.add(FOREVER)
        os.kill(stopped, signal.SIGSTOP)
        wait_until(lambda: state(stopped) == "T")
        wait_until(lambda: len(self.left()) >= 11)


def family_of(connect: Connect, server: ServerProcess) -> Family:
    peer = connect(server)
    peer.open_session()
    return Family(peer)


def test_a_killed_server_leaves_nothing(start_server: StartServer, connect: Connect) -> None:
    server = start_server()
    family = family_of(connect, server)
    family.add_every_kind()
    (zygote,) = zygotes_of(server.pid)
    server.signal(signal.SIGKILL)
    assert server.wait() == -signal.SIGKILL
    wait_until(lambda: not family.left(), LOSS_S)
    wait_until(lambda: is_over(zygote), LOSS_S)


def test_a_killed_server_leaves_nothing_of_detached_sessions(
    start_server: StartServer, connect: Connect
) -> None:
    server = start_server()
    family = family_of(connect, server)
    family.add_every_kind()
    family.peer.close()
    server.signal(signal.SIGKILL)
    server.wait()
    wait_until(lambda: not family.left(), LOSS_S)


@pytest.mark.parametrize("number", POLITE)
def test_a_server_asked_to_end_leaves_nothing(
    start_server: StartServer, connect: Connect, number: signal.Signals
) -> None:
    server = start_server(settings=SHORT_GRACE)
    family = family_of(connect, server)
    family.add_every_kind()
    server.signal(number)
    assert server.wait() == 0
    assert family.left() == []
    assert server.errors() == ""


def test_politeness_comes_first_and_is_not_waited_for_in_vain(
    start_server: StartServer, connect: Connect, tmp_path: Path
) -> None:
    server = start_server(settings=LONG_GRACE)
    family = family_of(connect, server)
    notes = tmp_path / "notes"
    notes.mkdir()
    go_there = f"cd {shlex.quote(str(notes))}"
    family.add(FOREVER, traps=f"{go_there}; trap 'touch term; exit' TERM")
    family.add(FOREVER, traps=f"{go_there}; trap 'touch hup; exit' HUP; trap '' TERM", tty=True)
    begun = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert time.monotonic() - begun < LONG_GRACE["shutdown_grace_s"] / 2
    assert sorted(os.listdir(notes)) == ["hup", "term"]


def test_the_stubborn_are_killed_after_the_grace(start_server: StartServer, connect: Connect) -> None:
    server = start_server(settings={"shutdown_grace_s": 0.8})
    family = family_of(connect, server)
    family.add(FOREVER, traps=DEAF)
    begun = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert time.monotonic() - begun >= 0.75
    assert family.left() == []


def test_a_second_signal_changes_nothing(start_server: StartServer, connect: Connect) -> None:
    server = start_server(settings={"shutdown_grace_s": 0.8})
    family = family_of(connect, server)
    family.add(FOREVER, traps=DEAF)
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        server.signal(number)
    assert server.wait() == 0
    assert family.left() == []


def test_signals_to_the_zygote_do_not_hurry_it(start_server: StartServer, connect: Connect) -> None:
    """A terminal's ^C or a service manager reaches the whole group: the server decides what happens."""
    server = start_server()
    family = family_of(connect, server)
    (zygote,) = zygotes_of(server.pid)
    for number in POLITE:
        os.kill(zygote, number)
    pid = family.add("exec sleep 100")
    assert zygotes_of(server.pid) == [zygote]
    assert not is_over(pid)


def test_without_processes_the_end_is_immediate(start_server: StartServer, connect: Connect) -> None:
    server = start_server(settings=LONG_GRACE)
    connect(server).open_session()
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


def test_a_zygote_that_hangs_does_not_keep_the_server_from_ending(
    start_server: StartServer, connect: Connect
) -> None:
    server = start_server(settings=SHORT_GRACE)
    family = family_of(connect, server)
    family.add("exec sleep 100")
    (zygote,) = zygotes_of(server.pid)
    os.kill(zygote, signal.SIGSTOP)
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert is_over(zygote)
    wait_until(lambda: not family.left())


def test_a_client_that_does_not_read_does_not_keep_the_server_from_ending(
    start_server: StartServer, connect: Connect
) -> None:
    server = start_server(settings=SHORT_GRACE)
    peer = connect(server)
    peer.open_session()
    Producer(peer, 1024**3).wait_until_blocked()
    server.signal(signal.SIGTERM)
    assert server.wait(20) == 0


@pytest.mark.parametrize("number", POLITE)
def test_a_server_on_stdio_ends_likewise(start_server: StartServer, number: signal.Signals) -> None:
    server = start_server(listen="stdio", settings=SHORT_GRACE)
    peer = server.stdio()
    with peer:
        peer.open_session()
        family = Family(peer)
        family.add_every_kind()
        server.signal(number)
        assert server.wait() == 0
        assert family.left() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_right_behind_the_url_ends_it_in_order(number: signal.Signals) -> None:
    """Most of the server is loaded only then.  A SIGHUP ends it by default then, as it does the reference."""
    for _ in range(3):
        with ServerProcess() as server:
            server.signal(number)
            assert server.wait() == 0


def test_a_reload_right_behind_the_url_ends_nothing() -> None:
    with ServerProcess(options=("--upgrade-on-hup", "--log-level", "info")) as server:
        server.signal(signal.SIGHUP)
        wait_until(lambda: "upgraded from" in server.errors(), 30)
        with server.connect() as peer:
            peer.open_session()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
