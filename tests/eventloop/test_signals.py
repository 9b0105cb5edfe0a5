"""Signals that end a program, in the event loop; what was ignored at the start stays ignored."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import gevent
import pytest

from execserver.eventloop.signals import on_end_signals
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def _handlers_are_put_back() -> Iterator[None]:
    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGURG, signal.SIGWINCH)
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_is_handled_in_the_loop_unless_it_was_ignored() -> None:
    taken: list[str] = []
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    on_end_signals(lambda: taken.append("end"), (signal.SIGUSR1, signal.SIGUSR2))
    os.kill(os.getpid(), signal.SIGUSR2)
    os.kill(os.getpid(), signal.SIGUSR1)
    wait_until(lambda: taken != [], pause=gevent.sleep)
    assert taken == ["end"]
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN


def test_signals_before_an_exec_are_collected_and_taken_by_whoever_comes_behind_it() -> None:
    taken: list[str] = []
    signals = on_end_signals(lambda: taken.append("end"), (signal.SIGURG,))
    reader, writer = signals.suspend()
    os.kill(os.getpid(), signal.SIGURG)
    gevent.sleep(0.01)
    assert taken == []
    other = on_end_signals(lambda: taken.append("other"), ())  # the program behind the exec
    other.take_over(os.dup(reader))
    assert taken == ["other"]
    signals.resume(reader, writer)
    assert taken == ["other"]  # it has been taken
    os.kill(os.getpid(), signal.SIGURG)
    wait_until(lambda: taken == ["other", "end"], pause=gevent.sleep)


def test_without_an_exec_the_same_program_takes_them() -> None:
    taken: list[str] = []
    signals = on_end_signals(lambda: taken.append("end"), (signal.SIGWINCH,))
    ends = signals.suspend()
    os.kill(os.getpid(), signal.SIGWINCH)
    signals.resume(*ends)
    assert taken == ["end"]
