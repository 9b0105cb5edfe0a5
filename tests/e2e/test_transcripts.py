"""The recorded traffic, played against our server, whole and cut to pieces, over both carriers.

What ours answers otherwise on purpose stands in `tests/transcripts/differences.toml`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.accounts import account_shell
from tests.support.feed import Feed, bytewise, random_cuts, whole
from tests.support.folders import plain_place
from tests.support.server_process import OURS
from tests.support.stage import play
from tests.support.surface import play_limits, play_surface

TARGET = (
    "01-lifecycle",
    "02-framing",
    "03-process-start",
    "04-process-io",
    "05-session",
    "06-fs",
    "07-http",
    "09-sandbox",
    "11-misc",
    "12-percent-encoding",
    "13-decode-errors",
    "15-check-order",
)
SHORT = ("01-lifecycle", "02-framing", "06-fs", "12-percent-encoding", "13-decode-errors", "15-check-order")
ONE_CONNECTION = ("03-process-start", "06-fs", "12-percent-encoding", "13-decode-errors", "15-check-order")
SEEDS = (1, 2)

# Tell the login shell, or the home that stands for a tilde.
OF_AN_ACCOUNT = ("01-lifecycle", "02-framing", "03-process-start", "04-process-io", "06-fs", "10-beyond")

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
def recorded_mask() -> Iterator[None]:
    """The mask for new files that the recorded server had; ours gets it from here."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder whose path is the same in the URIs of the traffic."""
    with tempfile.TemporaryDirectory(dir=plain_place(), ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def replay(name: str, tmp: Path, feed: Feed = whole, *, stdio: bool = False) -> None:
    """Play a transcript; skip what depends on an account this one is too different from."""
    if name.startswith(OF_AN_ACCOUNT) and account_shell() != "/bin/bash":
        pytest.skip(f"recorded with the login shell /bin/bash, and here it is {account_shell()}")
    check(play(name, tmp, OURS, feed, stdio=stdio))


def check(failures: list[str]) -> None:
    """Fail with one line per difference."""
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("name", TARGET)
def test_our_server_answers_as_recorded(name: str, tmp_path: Path) -> None:
    replay(f"{name}.0.142.0", tmp_path)


def test_our_server_answers_what_newer_clients_use(tmp_path: Path) -> None:
    replay("10-beyond-target.0.169.0", tmp_path)


@pytest.mark.parametrize("name", SHORT)
def test_input_that_arrives_byte_by_byte_is_answered_alike(name: str, tmp_path: Path) -> None:
    replay(f"{name}.0.142.0", tmp_path, bytewise)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SHORT)
def test_input_cut_at_random_places_is_answered_alike(name: str, seed: int, tmp_path: Path) -> None:
    replay(f"{name}.0.142.0", tmp_path, random_cuts(seed))


@pytest.mark.parametrize("name", ONE_CONNECTION)
def test_stdio_answers_as_a_websocket_does(name: str, tmp_path: Path) -> None:
    replay(f"{name}.0.142.0", tmp_path, stdio=True)


def test_command_lines_and_http_requests_are_answered_as_recorded() -> None:
    check(play_surface(OURS))


def test_messages_at_and_beyond_the_size_limits() -> None:
    check(play_limits(OURS))
