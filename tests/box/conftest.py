"""Fixtures: a person with a home, and one server for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.box.boxes import Person
from tests.support.server_process import ServerProcess


@pytest.fixture
def person(tmp_path: Path) -> Person:
    """Somebody at a shell."""
    return Person(tmp_path / "a home")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server on loopback."""
    with ServerProcess() as server:
        yield server
