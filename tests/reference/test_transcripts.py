"""The recorded traffic, played against the program it was recorded from.

This keeps the player honest: what it accepts from our server it must accept from the reference server too,
with no table of differences.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.server_process import Flavour
from tests.support.stage import play
from tests.support.surface import play_limits, play_surface

NAMES = (
    "01-lifecycle",
    "02-framing",
    "03-process-start",
    "04-process-io",
    "05-session",
    "06-fs",
    "07-http",
    "11-misc",
    "12-percent-encoding",
    "13-decode-errors",
    "15-check-order",
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_the_reference_server_still_answers_as_recorded(
    name: str, tmp_path: Path, reference: Flavour
) -> None:
    failures = play(f"{name}.0.142.0", tmp_path, reference)
    assert not failures, "\n".join(failures)


@pytest.mark.timeout(300)
def test_the_newest_reference_server_answers_as_recorded(tmp_path: Path, newest_reference: Flavour) -> None:
    failures = play("10-beyond-target.0.169.0", tmp_path, newest_reference)
    assert not failures, "\n".join(failures)


@pytest.mark.timeout(300)
def test_the_reference_server_takes_the_recorded_command_lines_and_requests(reference: Flavour) -> None:
    failures = play_surface(reference)
    assert not failures, "\n".join(failures)


@pytest.mark.timeout(300)
def test_the_reference_server_has_the_recorded_size_limits(reference: Flavour) -> None:
    failures = play_limits(reference)
    assert not failures, "\n".join(failures)
