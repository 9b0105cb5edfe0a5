"""Memory for what goes along is found in time, or not at all."""

from __future__ import annotations

import os
import threading
import time

import gevent
import pytest

from execserver.upgrading import room
from tests.support.waiting import wait_until

MIB = 1024 * 1024


def open_files() -> list[str]:
    return [
        name
        for name in map(_target, os.listdir("/proc/self/fd"))
        if name.startswith("/memfd:execserver-state")
    ]


def _target(number: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except FileNotFoundError:
        return ""


def test_room_is_made_for_much_only() -> None:
    little, much = room.outgoing_for(MIB - 1), room.outgoing_for(MIB)
    assert len(open_files()) == 1
    little.close()
    much.close()
    assert open_files() == []


@pytest.mark.parametrize("more", [0, 1])
def test_threads_that_are_all_busy_keep_nobody_waiting(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    """Also where not even a place in the line behind them is free."""
    monkeypatch.setattr(room, "_WAIT_S", 0.05)
    pool, go_on = gevent.get_hub().threadpool, threading.Event()
    busy = [pool.spawn(go_on.wait, 30) for _ in range(pool.maxsize + more)]
    try:
        out = room.outgoing_for(MIB)
        assert not go_on.is_set()
        assert open_files() == []
    finally:
        go_on.set()
        gevent.wait(busy)
    out.close()
    pool.apply(time.sleep, (0,))
    wait_until(lambda: not open_files(), pause=gevent.sleep)  # what comes after all is let go
