"""One piece of work for all who wait."""

from __future__ import annotations

import gevent
import pytest
from gevent.event import Event

from execserver.eventloop.single_flight import SingleFlight


def test_who_comes_meanwhile_waits_and_who_comes_later_begins_anew() -> None:
    go, done = Event(), []

    def work() -> None:
        go.wait()
        done.append(1)

    flight = SingleFlight(work, 2)
    waiting = [gevent.spawn(flight.join) for _ in range(3)]
    gevent.sleep(0)
    assert flight.under_way
    flight.join()  # a fourth would be one too many: it goes on at once
    assert done == []
    go.set()
    gevent.joinall(waiting, timeout=20)
    assert (done, flight.under_way) == ([1], False)
    flight.join()
    assert done == [1, 1]


def test_work_that_fails_fails_for_who_does_it_and_lets_the_others_go() -> None:
    go = Event()

    def work() -> None:
        go.wait()
        raise ValueError("no")

    flight = SingleFlight(work, 2)
    others = []

    def come_meanwhile() -> None:
        others.append(gevent.spawn(flight.join))
        others[0].join(0)
        go.set()

    gevent.spawn(come_meanwhile)
    with pytest.raises(ValueError, match="no"):
        flight.join()
    others[0].join(10)
    assert others[0].successful()
    assert not flight.under_way
