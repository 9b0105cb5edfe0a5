"""What holds for the tests of remote mode: none of them may wait for ever in the event loop.

A signal does not wake a loop that waits for descriptors, so the limit is a timer of the loop itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import gevent
import pytest

from tests.support.relay import Relay
from tests.support.remote_process import RemoteProcess

LIMIT_S = 280.0 if os.environ.get("EXECSERVER_LONG") == "1" else 50.0


class WaitedTooLong(Exception):
    """A test has waited in the event loop for too long."""


@pytest.fixture(autouse=True)
def nothing_waits_for_ever() -> Iterator[None]:
    """Raise in a test that waits for too long."""
    with gevent.Timeout(LIMIT_S, WaitedTooLong):
        yield


@pytest.fixture
def relay() -> Iterator[Relay]:
    """A relay in this program's own loop."""
    with Relay() as running:
        yield running


@pytest.fixture
def executor(relay: Relay) -> Iterator[RemoteProcess]:
    """A server that is registered and connected."""
    with RemoteProcess(relay.url) as process:
        process.says("waiting for a harness")
        yield process
