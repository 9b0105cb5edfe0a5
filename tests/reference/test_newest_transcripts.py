"""The traffic of the newest reference server, played against the program it was recorded from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.newest import play_newest
from tests.support.newest_courses import COURSES
from tests.support.server_process import Flavour

# It remembers what it found for a moment, and a skill that was added in between is not seen.
REMEMBERS = "03-capabilities-discoverV2-skills"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(COURSES.keys() - {REMEMBERS}))
def test_the_newest_reference_server_answers_as_recorded(
    name: str, tmp_path: Path, newest_reference: Flavour
) -> None:
    failures = play_newest(name, tmp_path, replace(newest_reference, exit_on_terminate=0), COURSES[name])
    assert not failures, "\n".join(failures)
