"""Memory of a relay: after a load it is nearly what it was when it was warm."""

from __future__ import annotations

import time

import pytest

from execserver.wire.relay_frames import Data, Handshake, Reset
from tests.conftest import LONG
from tests.support.proc import descriptors, resident_bytes, thread_count
from tests.support.relay_process import Peer, RelayProcess, masked_frame
from tests.support.waiting import wait_until

MIB = 1024 * 1024
GROWN_BYTES = 8 * MIB  # measured: 2.5 MiB, some seconds after a load that needs 16 MiB
STREAMS = 10_000 if LONG else 300
ROOMS = 12  # environments with as many idle harnesses as one may have
IDLE = 40


def play(executor: Peer, harness: Peer, streams: int) -> None:
    for number in range(streams):
        name = f"stream-{number}"
        harness.send(name, Handshake(bytes(1200)))
        executor.receive()
        executor.send(name, Data(0, bytes(60_000)))
        harness.receive()
        harness.send(name, Reset("over"))
        executor.receive()


def visit(relay: RelayProcess) -> None:
    """Come with many that say nothing, each with most of a frame that is never whole, and leave."""
    peers = []
    for room in range(ROOMS):
        token = relay.token(f"room-{room}")
        peers.append(relay.executor(token, 5, f"room-{room}"))
        peers += [relay.harness(token, 2000 + seat, f"room-{room}") for seat in range(IDLE)]
    for peer in peers:
        peer.send_raw(masked_frame(2, bytes(200_000))[:190_000])
    for peer in peers:
        peer.close()
    wait_until(lambda: relay.metric("execserver_relay_environments") == 1)


@pytest.mark.timeout(1200 if LONG else 60)
def test_a_relay_settles_after_its_load() -> None:
    with RelayProcess(limits={"calls_per_s": 100_000}) as relay:
        token = relay.token()
        executor, harness = relay.executor(token), relay.harness(token)
        play(executor, harness, 50)
        warm, opened = resident_bytes(relay.pid), len(descriptors(relay.pid))
        play(executor, harness, STREAMS)
        visit(relay)
        visit(relay)
        wait_until(lambda: resident_bytes(relay.pid) - warm < GROWN_BYTES, 30, pause=time.sleep)
        # The connection that asked for the metrics may be gone a moment later than its answer came.
        wait_until(lambda: len(descriptors(relay.pid)) == opened, pause=time.sleep)
        assert thread_count(relay.pid) == 1
        executor.close()
        harness.close()
