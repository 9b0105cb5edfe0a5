"""A real engine for the tests of a module that ask for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.engine_process import EngineProcess
from tests.support.greenlets import loop_failures

__all__ = ["loop_failures", "process"]


@pytest.fixture(scope="module")
def process() -> Iterator[EngineProcess]:
    """The module's engine; leaves the test out where there is no program for one."""
    with EngineProcess() as started:
        yield started
