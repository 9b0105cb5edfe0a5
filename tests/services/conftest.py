"""What tests of the services share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.fakes import FakeSpawner
from tests.support.greenlets import loop_failures

__all__ = ["loop_failures"]


@pytest.fixture
def fake_spawner() -> Iterator[FakeSpawner]:
    """Processes that a test plays; those still running are ended after it."""
    made = FakeSpawner()
    yield made
    made.end()
