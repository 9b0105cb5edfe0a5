"""Who gives way lets timers and sockets have their turn."""

from __future__ import annotations

import time

import gevent

from execserver.eventloop.turns import give_way


def test_a_timer_that_is_due_has_its_turn_at_once() -> None:
    woken = gevent.Greenlet.spawn(gevent.sleep, 0.001)
    gevent.sleep(0)
    for _ in range(3):
        ends = time.monotonic() + 0.002
        while time.monotonic() < ends:
            pass
        give_way()
    assert woken.ready()


def test_who_gives_way_comes_back_to_a_busy_loop() -> None:
    busy = gevent.Greenlet.spawn(_always_ready)
    for _ in range(10):
        give_way()
    busy.kill()
    assert busy.dead


def _always_ready() -> None:
    while True:
        gevent.sleep(0)
