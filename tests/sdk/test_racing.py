"""Several addresses of one name: the first that answers wins, and nothing is left of the others."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from execserver_client._racing import HEAD_START_S, MAX_ADDRESSES, first_to_answer, in_turn
from execserver_client._sockets import Place
from tests.sdk.support import run_async


def place(port: int, host: str = "127.0.0.1") -> Place:
    return Place(socket.AF_INET, socket.SOCK_STREAM, 0, (host, port))


@contextmanager
def answering() -> Iterator[Place]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield place(sock.getsockname()[1])


@contextmanager
def refusing() -> Iterator[Place]:
    with socket.socket() as sock:  # bound, and does not listen
        sock.bind(("127.0.0.1", 0))
        yield place(sock.getsockname()[1])


@contextmanager
def silent() -> Iterator[Place]:
    """An address that takes no connection: its queue is full."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        port = sock.getsockname()[1]
        waiting = []
        for _ in range(3):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(("127.0.0.1", port))
        yield place(port)
        for each in waiting:
            each.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def race(*places: Place) -> int:
    """Return the port that was reached; nothing else is left open."""

    async def play() -> int:
        before = open_descriptors()
        sock = await first_to_answer(list(places))
        assert open_descriptors() == before + 1
        with sock:
            return int(sock.getpeername()[1])

    return run_async(play())


def test_the_next_address_is_tried_at_once_when_one_refuses() -> None:
    with refusing() as bad, answering() as good:
        assert race(bad, bad, good) == good.target[1]


def test_the_next_address_is_tried_soon_when_one_is_silent() -> None:
    with silent() as bad, answering() as good:
        assert race(bad, good) == good.target[1]


def test_an_earlier_address_may_still_win() -> None:
    with answering() as good, silent() as bad:
        assert race(good, bad, bad) == good.target[1]


def test_when_none_answers_the_first_reason_is_told() -> None:
    with refusing() as bad:
        nowhere = Place(socket.AF_INET, socket.SOCK_STREAM, 0, ("255.255.255.255", 1))
        with pytest.raises(ConnectionRefusedError, match=str(bad.target[1])):
            race(bad, nowhere)
    with pytest.raises(OSError, match="the name has no address"):
        race()


def test_who_gives_up_leaves_nothing_open() -> None:
    async def play() -> None:
        with silent() as bad:
            before = open_descriptors()
            racing = asyncio.create_task(first_to_answer([bad, bad, bad]))
            await asyncio.sleep(0)
            while open_descriptors() < before + 2:  # the second attempt is under way
                await asyncio.sleep(HEAD_START_S / 10)
            racing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await racing
            assert open_descriptors() == before

    run_async(play())


def test_families_alternate_and_many_addresses_are_cut() -> None:
    def known(family: int, number: int) -> Place:
        return Place(family, socket.SOCK_STREAM, 0, ("", number))

    six, four = socket.AF_INET6, socket.AF_INET
    places = [*(known(six, number) for number in range(3)), known(four, 9)]
    assert in_turn(places) == [known(six, 0), known(four, 9), known(six, 1), known(six, 2)]
    assert len(in_turn([known(four, number) for number in range(20)])) == MAX_ADDRESSES == 8
    assert in_turn([]) == []
