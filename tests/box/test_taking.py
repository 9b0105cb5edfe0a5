"""Several people at one shell: who has the keyboard is told, it comes back, and leaving ends it for none."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.box.boxes import Person, Screen, cut_way
from tests.box.test_shell import wait_for_prompt
from tests.support.server_process import ServerProcess

TAKEN = b"somebody else has taken the keyboard; `execserver attach --take` takes it back\r\n"
BACK = b"the keyboard is yours again\r\n"


@pytest.fixture
def at_home(server: ServerProcess, person: Person) -> Person:
    """Somebody whose default box is the server."""
    person.environ["EXECSERVER_BOX"] = server.url
    return person


@contextmanager
def shell(person: Person, name: str, *words: str) -> Iterator[Screen]:
    with person.at_terminal("shell", *words, "--name", name) as screen:
        wait_for_prompt(screen)
        yield screen


@contextmanager
def taking(person: Person, name: str) -> Iterator[Screen]:
    with person.at_terminal("attach", "--take", name) as screen:
        wait_for_prompt(screen)
        yield screen


def test_a_keyboard_that_was_taken_is_told_and_comes_back(at_home: Person) -> None:
    with shell(at_home, "shared") as owner:
        with taking(at_home, "shared") as taker:
            owner.wait_for(TAKEN)
            owner.type(b"echo un'seen'\r")
            taker.type(b"echo se'en'\r")
            assert b"unseen" not in taker.wait_for(b"seen\r\n")
            taker.type(b"\r~d")
            assert taker.ended() == 0
        owner.wait_for(BACK)
        owner.type(b"echo mi'ne'; exit 5\r")
        assert b"unseen" not in owner.wait_for(b"mine\r\n")
        assert owner.ended() == 5


@pytest.mark.parametrize("way", ["keys", "closed terminal"])
def test_who_leaves_what_somebody_else_uses_ends_nothing(at_home: Person, way: str) -> None:
    name = way.replace(" ", "-")
    with shell(at_home, name) as owner, taking(at_home, name) as taker:
        owner.wait_for(TAKEN)
        if way == "keys":
            owner.type(b"\r~.")
        else:
            os.kill(owner.pid, signal.SIGHUP)
        owner.wait_for(b"left running for 1 h; come back with: execserver attach ")
        assert owner.ended() == (130 if way == "keys" else 128 + signal.SIGHUP)
        taker.type(b"echo still h'ere'; exit 6\r")
        taker.wait_for(b"still here\r\n")
        assert taker.ended() == 6


def test_what_happened_while_the_connection_was_lost_is_told_by_the_next_key(
    at_home: Person, server: ServerProcess
) -> None:
    with cut_way(server) as proxy, shell(at_home, "away", proxy.url) as owner:
        proxy.refuse(True)
        proxy.cut()
        owner.wait_for(b"is lost; trying to resume")
        with taking(at_home, "away") as taker:
            taker.type(b"echo i'n'\r")
            taker.wait_for(b"in\r\n")
            proxy.refuse(False)
            owner.wait_for(b" again\r\n")
            owner.type(b"un'seen'\r")
            owner.wait_for(TAKEN)
            proxy.refuse(True)
            proxy.cut()
            taker.type(b"\r~d")
            assert taker.ended() == 0
        proxy.refuse(False)
        owner.wait_for(BACK)
        owner.type(b"exit 7\r")
        assert owner.ended() == 7
