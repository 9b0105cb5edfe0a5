"""How a process ends that a signal has kept from becoming a stand-in: a child of a child of ours."""

from __future__ import annotations

import os
import select
import signal
from typing import Any

import pytest

from execserver.sandbox.backends.probe import attempt
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.zygote.supervision.stand_in import probe
from execserver.zygote.supervision.stand_in.stand_in import PASSING, STANDING, STUCK
from tests.support.waiting import wait_until

HERE = probe.check_stand_ins()
pytestmark = pytest.mark.skipif(not HERE.works, reason=f"no stand-ins here: {HERE.blocker}")
_WALL = 0x40000000


@pytest.mark.parametrize(
    ("came", "step"),
    [(signal.SIGCONT, STUCK), (signal.SIGSTOP, STUCK), (signal.SIGUSR1, STANDING)],
)
def test_it_dies_of_the_signal_that_ended_its_program(
    monkeypatch: pytest.MonkeyPatch, came: signal.Signals, step: int
) -> None:
    def follow(pid: int, one: Any, stand_ins: Any, listener: Any, poll: select.poll) -> None:
        ends: list[int] = []
        steps: list[int] = []

        def may_be_heard() -> bool:
            # On a busy machine it still waits after the signal.  Heard then, it would not get stuck.
            is_woken = step == STUCK and PASSING in steps
            return not is_woken and bool(poll.poll(0))

        def go_on() -> bool:
            ended, status = os.waitpid(pid, os.WNOHANG | _WALL)
            if ended and not os.WIFSTOPPED(status):
                ends.append(os.waitstatus_to_exitcode(status))
            elif ended:
                stand_ins.changed(pid, status)
                steps.append(one.step)
                if one.step == PASSING:
                    wait_until(lambda: poll.poll(0), 20.0)  # it waits, and nobody has heard of it
                    os.kill(pid, came)
                elif one.step in (STANDING, STUCK):
                    one.finish(signal.SIGTERM)
            elif may_be_heard() and (notification := listener.receive()) is not None:
                stand_ins.asked(notification)
            return bool(ends)

        wait_until(go_on, 20.0)
        if step not in steps or ends != [-signal.SIGTERM]:
            raise OSError(0, f"{steps} {ends}")

    monkeypatch.setattr(probe, "_follow", follow)
    assert attempt(lambda: probe._try(Kernel())) is None
