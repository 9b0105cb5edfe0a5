"""`execserver shell` at a real terminal: keys, signals, losses; and the terminal afterwards."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import gevent
import pytest

from tests.box.boxes import Person, Screen, cut_way
from tests.support.cutting_proxy import CuttingProxy
from tests.support.relay_process import ENVIRONMENT
from tests.support.remote_scene import RemoteScene
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

WAIT_S = 30.0


def wait_for_prompt(screen: Screen) -> None:
    """Wait until the shell takes commands; the quotes keep the echo from looking like the answer."""
    screen.type(b"echo re'a'dy\r")
    screen.wait_for(b"ready\r\n")


def type_while_lost(screen: Screen, way: CuttingProxy) -> None:
    """Type a command, whose output is `still here`, while the box cannot be reached."""
    way.refuse(True)
    way.cut()
    screen.wait_for(b"is lost; trying to resume (~. ends)\r\n")
    screen.type(b"echo sti'l'l here\r")
    way.refuse(False)


@pytest.mark.long
def test_a_shell_ends_with_its_own_status(person: Person, server: ServerProcess) -> None:
    with person.at_terminal("shell", server.url) as screen:
        wait_for_prompt(screen)
        assert screen.is_raw()
        screen.type(b"shopt -q login_shell 2>/dev/null && echo lo'g'in; exit 9\r")
        assert screen.ended() == 9


def test_keys_for_the_client(person: Person, server: ServerProcess) -> None:
    with person.at_terminal("shell", server.url) as screen:
        wait_for_prompt(screen)
        screen.type(b"~?")
        screen.wait_for(b"~. ends this session")
        screen.type(b"~~\x15\r~.")
        assert screen.ended() == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.long)])
def test_the_terminal_is_restored_after_a_signal(
    person: Person, server: ServerProcess, number: signal.Signals
) -> None:
    with person.at_terminal("shell", server.url) as screen:
        wait_for_prompt(screen)
        assert screen.is_raw()
        os.kill(screen.pid, number)
        wait_until(lambda: not screen.is_raw(), WAIT_S)
        assert screen.ended() == 128 + number


@pytest.mark.parametrize("way", ["keys", "signal", "end"])
def test_what_a_full_screen_program_has_switched_on_is_off_afterwards(
    person: Person, server: ServerProcess, way: str
) -> None:
    with person.at_terminal("shell", server.url) as screen:
        wait_for_prompt(screen)
        # Its own screen, reports of mouse and focus; the cursor is hidden.
        screen.type(b"printf '\\033[?1049h\\033[?1000;1004h\\033[?25l'; echo dra'wn'; read x; exit\r")
        screen.wait_for(b"drawn\r\n")
        if way == "signal":
            os.kill(screen.pid, signal.SIGTERM)
        else:
            screen.type(b"\r~." if way == "keys" else b"\r")
        screen.ended()
        is_off = b"\x1b[?1049l" in screen.text and b"1004" in screen.text and b"\x1b[?25h" in screen.text
        assert is_off is (way != "end")  # a command that ends leaves the terminal as it wants it


def test_a_stopped_client_gives_the_terminal_back_until_it_goes_on(
    person: Person, server: ServerProcess
) -> None:
    with person.at_terminal("shell", server.url) as screen:
        wait_for_prompt(screen)
        os.kill(screen.pid, signal.SIGTSTP)
        wait_until(lambda: state_of(screen.pid) == "T", WAIT_S)
        assert not screen.is_raw()
        screen.resize(31, 91)
        os.kill(screen.pid, signal.SIGCONT)
        wait_until(screen.is_raw, WAIT_S)
        screen.type(b"while [ \"$(stty size)\" != '31 91' ]; do sleep 0.1; done; echo si'z'ed; exit 3\r")
        screen.wait_for(b"sized\r\n")
        assert screen.ended() == 3
        assert not screen.is_raw()


def state_of(pid: int) -> str:
    """Return the letter of a process's state, T if it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.long
def test_a_loss_is_survived_and_told(person: Person, server: ServerProcess) -> None:
    with cut_way(server) as way, person.at_terminal("shell", way.url) as screen:
        wait_for_prompt(screen)
        type_while_lost(screen, way)
        screen.wait_for(b"again\r\n")
        screen.wait_for(b"still here\r\n")
        way.refuse(True)
        way.cut()
        screen.wait_for(b"(~. ends)\r\n")
        screen.type(b"\r~.")
        assert screen.ended() == 130


def test_a_shell_needs_a_terminal(person: Person, server: ServerProcess) -> None:
    done = person.run("shell", server.url)
    assert done.returncode == 1
    assert b"execserver run -- COMMAND" in done.stderr


@pytest.mark.long
def test_a_relay_leads_to_a_box(person: Person) -> None:
    with RemoteScene() as scene:
        # In a thread: the ways of the scene are greenlets of this one.
        gevent.get_hub().threadpool.apply(use_relay, (person, scene))


def use_relay(person: Person, scene: RemoteScene) -> None:
    box = f"relay:{scene.relay.url}/{ENVIRONMENT}"
    done = person.run("run", box, "--", "cat", stdin=b"in", EXECSERVER_TOKEN=scene.token)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"in", b"")
    with person.at_terminal("shell", box, EXECSERVER_TOKEN=scene.token) as screen:
        wait_for_prompt(screen)
        screen.type(b"exit 4\r")
        assert screen.ended() == 4
    refused = person.run("run", box, "--", "true", EXECSERVER_TOKEN="wrong")
    assert refused.returncode == 255
    assert b"give a token that counts there" in refused.stderr
