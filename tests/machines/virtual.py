"""What the tests in a virtual machine with Debian's kernel need, and the reason to skip them without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.machines import system
from tests.machines.machine import Machine, can_run
from tests.support.source import ROOT
from tools.debian import DEBIAN
from tools.problems import Problem

T = TypeVar("T")

PROGRAM = ROOT / "dist" / "execserver"


def machine_with(contents: Callable[[], T], memory_mib: int) -> tuple[Machine, T]:
    """Return a machine and what `contents` makes for it; skip the test where either is not to be had."""
    if not PROGRAM.exists():
        pytest.skip("the one file is not built: python3 build.py build")
    if not can_run("x86_64"):
        pytest.skip("there is no qemu-system-x86_64 here")
    try:
        kernel = system.kernel(DEBIAN, "bookworm", "linux-image-cloud-amd64", "x86_64")
        made = contents()
    except Problem as problem:
        pytest.skip(f"no kernel or no system can be had: {problem}")
    return Machine("x86_64", kernel, memory_mib=memory_mib), made
