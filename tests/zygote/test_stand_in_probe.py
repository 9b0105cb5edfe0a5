"""Whether a machine has stand-ins, and what is said where it has none."""

from __future__ import annotations

import os
import platform

import pytest

from execserver.sandbox.kernel.syscalls import Kernel
from execserver.zygote.supervision.probe import check_notification
from execserver.zygote.supervision.stand_in.code import CODES
from execserver.zygote.supervision.stand_in.probe import check_stand_ins


def test_a_machine_that_tells_of_programs_has_stand_ins() -> None:
    if platform.machine() not in CODES or not check_notification().works:
        pytest.skip("programs are not told of here")
    before = os.listdir("/proc/self/fd")
    assert check_stand_ins().works
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("call", ["ptrace", "seccomp"])
def test_without_the_calls_there_are_none(call: str) -> None:
    check = check_stand_ins(Kernel([call]))
    assert not check.works
    assert check.blocker
    assert "signals do not reach them" in check.cure


def test_another_cpu_has_none() -> None:
    kernel = Kernel()
    kernel.machine = "riscv64"
    assert check_stand_ins(kernel).blocker == "there is no code for this CPU (riscv64)"
