"""When the zygote may do something ahead: the server rests, or never does."""

from __future__ import annotations

import os
import subprocess
import time

from execserver.zygote import rest
from execserver.zygote.rest import ServerRest


def work() -> None:
    until = time.process_time() + 2 * rest._BUSY_S
    while time.process_time() < until:
        pass


def test_a_process_that_worked_since_the_last_question_does_not_rest() -> None:
    mine = ServerRest(os.getpid())
    for _ in range(3):
        work()
        assert not mine.has_come()
    assert mine.has_come()


def test_a_process_that_always_works_is_waited_for_a_limited_time() -> None:
    mine = ServerRest(os.getpid())
    for _ in range(rest._MOST_DENIALS):
        work()
        assert not mine.has_come()
    work()
    assert mine.has_come()


def test_a_process_that_is_gone_rests() -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    assert ServerRest(gone.pid).has_come()
