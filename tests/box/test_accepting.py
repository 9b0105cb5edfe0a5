"""Ports that are listened on here: each connection has a place, and further ones wait in the kernel."""

from __future__ import annotations

from collections.abc import Iterator

import gevent
import pytest
from gevent import socket

from execserver.box.ports import accepting
from execserver.box.ports.accepting import Doors
from execserver.box.ports.forwards import Place
from execserver.eventloop.ends import End
from tests.support.greenlets import loop_failures, the_hub_settles, turns
from tests.support.sockets import need_ipv6
from tests.support.waiting import wait_until

__all__ = ["loop_failures", "the_hub_settles"]
pytestmark = pytest.mark.usefixtures("loop_failures")

HERE = "127.0.0.1"


class House:
    """Doors with two places, and who came in."""

    def __init__(self) -> None:
        self.doors = Doors()
        self.inside: list[End] = []
        self.callers: list[socket.socket] = []

    def call(self, at: Place) -> None:
        self.callers.append(socket.create_connection((at.host, at.port), 20))

    def leave(self) -> None:
        self.inside.pop().close()
        self.doors.give_back()


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(accepting, "MOST", 2)
    house = House()
    yield house
    house.doors.close()
    for each in (*house.inside, *house.callers):
        each.close()


def test_who_connects_beyond_the_places_waits_for_one(house: House) -> None:
    one, other = (house.doors.listen(Place(HERE, 0), house.inside.append) for _ in range(2))
    for at in (one, other, other, one):
        house.call(at)
    wait_until(lambda: len(house.inside) == 2, pause=gevent.sleep)
    turns(5)
    assert len(house.inside) == 2
    for left in (2, 2, 1, 0):
        house.leave()
        wait_until(lambda left=left: len(house.inside) == left, pause=gevent.sleep)  # type: ignore[misc]


def test_a_place_can_be_taken_by_who_comes_another_way(house: House) -> None:
    at = house.doors.listen(Place(HERE, 0), house.inside.append)
    house.doors.take_place()
    house.doors.take_place()
    third = gevent.spawn(house.doors.take_place)
    house.call(at)
    turns(5)
    assert (third.ready(), house.inside) == (False, [])
    house.doors.give_back()
    third.get(timeout=20)
    turns(5)
    assert house.inside == []
    house.doors.give_back()
    wait_until(lambda: len(house.inside) == 1, pause=gevent.sleep)


def test_what_is_accepted_waits_for_nothing_before_it_leaves(house: House) -> None:
    at = house.doors.listen(Place(HERE, 0), house.inside.append)
    house.call(at)
    wait_until(lambda: len(house.inside) == 1, pause=gevent.sleep)
    assert house.inside[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_that_is_taken_is_an_error(house: House) -> None:
    at = house.doors.listen(Place(HERE, 0), house.inside.append)
    with pytest.raises(OSError, match="in use"):
        house.doors.listen(at, house.inside.append)


def test_ipv6_is_listened_on(house: House) -> None:
    need_ipv6()
    at = house.doors.listen(Place("::1", 0), house.inside.append)
    assert at.host == "::1"
    house.call(at)
    wait_until(lambda: len(house.inside) == 1, pause=gevent.sleep)
    assert house.inside[0].getpeername()[0] == "::1"


def test_a_place_that_is_given_back_late_opens_no_door_again(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    at = house.doors.listen(Place(HERE, 0), house.inside.append)
    for _ in range(2):
        house.call(at)
    wait_until(lambda: len(house.inside) == 2, pause=gevent.sleep)
    house.doors.close()
    house.leave()
    turns(5)
    assert caplog.text == ""
