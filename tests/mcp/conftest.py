"""Shell calls as the tool makes them, for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.services.launch.spawner import Spawner
from tests.mcp.calling import Calls, starter


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    with starter() as made:
        yield made


@pytest.fixture
def calls(spawner: Spawner, tmp_path: Path) -> Iterator[Calls]:
    made = Calls(spawner, tmp_path)
    yield made
    made.wait_until_nothing_is_left()
