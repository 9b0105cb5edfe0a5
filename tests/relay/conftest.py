"""One relay for the tests of a module that leave nothing in it, and one for each test that does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.relay_process import RelayProcess


@pytest.fixture
def relay() -> Iterator[RelayProcess]:
    """A relay with short times."""
    limits = {"connect_wait_s": 0.3, "drain_s": 0.3, "token_check_s": 0.1}
    with RelayProcess("--log-level", "debug", limits=limits) as running:
        yield running


@pytest.fixture
def token(relay: RelayProcess) -> str:
    """A token for both roles."""
    return relay.token()
