"""The recorded traffic of the newest reference server, played against ours."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.folders import plain_place
from tests.support.newest import play_newest
from tests.support.newest_courses import COURSES
from tests.support.server_process import OURS


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder whose path is the same in the URIs of the traffic."""
    with tempfile.TemporaryDirectory(dir=plain_place(), ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve()


@pytest.mark.parametrize("name", COURSES)
def test_our_server_answers_as_the_newest_reference_server_did(name: str, root: Path) -> None:
    failures = play_newest(name, root, OURS, COURSES[name])
    assert not failures, "\n".join(failures)
