"""A laptop that sleeps, and wakes where its server is reached by another way."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.box.boxes import Person, cut_way
from tests.box.test_shell import wait_for_prompt
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

WAIT_S = 30.0
_KEEP_ALIVE_S = 22.0  # a server ends a connection whose peer is silent for 20 s


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_shell_survives_sleep_beyond_the_keep_alive_and_a_server_that_moved(person: Person) -> None:
    with (
        ServerProcess() as server,
        cut_way(server) as way,
        person.at_terminal("shell", way.url) as screen,
    ):
        wait_for_prompt(screen)
        screen.type(b"X=kept; (sleep 5; echo wh'i'le asleep) &\r")
        screen.wait_for(b"(sleep 5")
        os.kill(screen.pid, signal.SIGSTOP)
        asleep = time.monotonic()
        way.refuse(True)
        way.cut()
        wait_until(lambda: time.monotonic() - asleep > _KEEP_ALIVE_S, 60)
        way.refuse(False)
        os.kill(screen.pid, signal.SIGCONT)
        screen.wait_for(b"while asleep\r\n")
        screen.type(b"echo $X\r")
        screen.wait_for(b"kept\r\n")
        screen.type(b"exit 4\r")
        assert screen.ended() == 4
    assert way.connections >= 2


@pytest.mark.long
@pytest.mark.timeout(120)
def test_sleep_without_a_loss_changes_nothing(person: Person, server: ServerProcess) -> None:
    with person.at_terminal("shell", server.url) as screen:
        wait_for_prompt(screen)
        os.kill(screen.pid, signal.SIGSTOP)
        asleep = time.monotonic()
        screen.type(b"echo aw'a'ke\r")
        wait_until(lambda: time.monotonic() - asleep > 2 * _KEEP_ALIVE_S, 60)
        os.kill(screen.pid, signal.SIGCONT)
        screen.wait_for(b"awake\r\n")
        screen.type(b"exit\r")
        assert screen.ended() == 0
