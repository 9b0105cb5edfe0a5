"""What a server needs for its work it gives back: memory, descriptors and threads are as before a load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import LONG
from tests.support.load import MIB, Held, Load, held_by, play, send_unfinished
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

WARMING = Load(2_000, 80, 40, 4)
# The short run has a hundredth of the long one, and a bound that its garbage would pass if it stayed.
LOAD = Load(1_000_000, 100_000, 20_000, 60) if LONG else Load(10_000, 1_000, 200, 10)
LOAD_MIB = 24 if LONG else 5
UNFINISHED_MIB = 16
SETTLE_S = 60.0
ROOT = Path(__file__).resolve().parents[2]
SETTINGS: dict[str, object] = {"closed_process_retention_s": 1.0, "detached_session_ttl_s": 1.0}


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    """A server that has done a little of everything, and has settled."""
    with ServerProcess(settings=SETTINGS, cwd=ROOT) as running:
        with running.connect() as peer:
            peer.open_session()
            peer.call("environment/sandbox", {})
            idle = held_by(running)  # with one connection
        play(running, WARMING, "w")
        wait_until(lambda: held_by(running).descriptors < idle.descriptors, SETTLE_S)
        yield running
        assert "Traceback" not in running.errors()


def settles(server: ServerProcess, before: Held, mib: int) -> None:
    """Wait until the server holds what it held before, and at most so much more memory."""

    def settled() -> bool:
        now = held_by(server)
        more = now.descriptors > before.descriptors or now.threads > before.threads
        return not more and now.resident - before.resident <= mib * MIB

    try:
        wait_until(settled, SETTLE_S)
    except AssertionError:
        pytest.fail(f"after {SETTLE_S:g} s the server holds {held_by(server)}, before it held {before}")


@pytest.mark.timeout(3600 if LONG else 120)
def test_a_mixed_load_leaves_nothing_behind(server: ServerProcess) -> None:
    before = held_by(server)
    play(server, LOAD, "p")
    settles(server, before, LOAD_MIB)


@pytest.mark.timeout(120)
def test_messages_that_were_never_finished_leave_nothing_behind(server: ServerProcess) -> None:
    before = held_by(server)
    send_unfinished(server, connections=4, size=60 * MIB)
    settles(server, before, UNFINISHED_MIB)
