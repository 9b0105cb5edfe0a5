"""The traffic recorded from 0.169.0, played against our server (`tests/transcripts/newest`).

What ours answers otherwise on purpose stands in `tests/transcripts/differences.toml`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.accounts import account_shell
from tests.support.folders import plain_place
from tests.support.newest_processes import play_newest

pytestmark = [pytest.mark.timeout(180), pytest.mark.ours_only("0.142.0 is older than these")]


@pytest.fixture(autouse=True)
def recorded_mask() -> Iterator[None]:
    """The mask for new files that the recorded server had; ours gets it from here."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder whose path is the same in the URIs of the traffic."""
    with tempfile.TemporaryDirectory(dir=plain_place(), ignore_cleanup_errors=True) as folder:
        yield Path(folder)


REPLAYED = (
    "07-process-start-members",
    "08-sandbox-missing-path-behavior",
    "09-sandbox-policyContext",
    "22-process-shellSnapshot",
)


@pytest.mark.parametrize("name", REPLAYED)
def test_a_request_is_answered_as_recorded(name: str, root: Path) -> None:
    if account_shell() != "/bin/bash":
        pytest.skip(f"recorded with the login shell /bin/bash, and here it is {account_shell()}")
    failures = play_newest(f"newest/{name}", root)
    assert not failures, "\n".join(failures)
