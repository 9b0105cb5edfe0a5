"""Slow receivers, fast senders, limits of bytes: who waits for whom, and for how long."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from execserver.wire.relay_frames import Data, Handshake, RelayFrame, Reset, encode_frame
from tests.support.relay_process import WAIT, Peer, RelayProcess, masked_frame
from tests.support.waiting import wait_until

RECORD = bytes(61_456)
MIB = 1024 * 1024
QUICK_S = 0.02  # Nagle's algorithm would cost each exchange 40 ms


def flood(peer: Peer, stream_id: str, most: int, until: Callable[[], bool]) -> int:
    """Send records until nothing more is taken for a moment and `until` holds; return how many bytes were.

    A relay that has no turn for a while takes nothing either, so that alone does not end it.
    """
    frame = masked_frame(2, encode_frame(RelayFrame(stream_id, Data(0, RECORD))))
    peer.socket.settimeout(0.5)
    taken = 0
    view, stood = memoryview(b""), False
    deadline = time.monotonic() + WAIT
    while taken < most and not (stood and until()):
        view = view or memoryview(frame)
        try:
            count = peer.socket.send(view)
        except TimeoutError:
            assert time.monotonic() < deadline
            stood = True
            continue
        view = view[count:]
        taken += count
    return taken


def held_back(relay: RelayProcess, reason: str) -> bool:
    return relay.metric(f'execserver_relay_held_back_total{{reason="{reason}"}}') >= 1


def closed_as_slow(relay: RelayProcess) -> bool:
    return relay.metric('execserver_relay_closed_total{reason="slow"}') == 1


@pytest.fixture
def unhurried() -> RelayProcess:
    return RelayProcess("--rate", "0")


def test_a_slow_executor_holds_its_harness_back_and_memory_stays(unhurried: RelayProcess) -> None:
    with unhurried as relay:
        token = relay.token()
        executor = Peer(relay.register(token)["url"], receive_buffer=65_536)
        with executor, relay.harness(token) as harness:
            harness.send("a", Handshake(b"x"))
            executor.receive()
            before = relay.metric("process_resident_memory_bytes")
            taken = flood(harness, "a", 400 * MIB, lambda: held_back(relay, "slow_executor"))
            assert taken < 60 * MIB
            assert relay.metric("process_resident_memory_bytes") - before < 8 * MIB
            assert held_back(relay, "slow_executor")
            assert executor.receive().body == Data(0, RECORD)  # nothing is lost, and it goes on


def test_a_small_frame_overtakes_the_flood_of_another_harness(unhurried: RelayProcess) -> None:
    with unhurried as relay:
        token = relay.token()
        executor = Peer(relay.register(token)["url"], receive_buffer=65_536)
        with executor, relay.harness(token, 1) as flooding, relay.harness(token, 2) as typing:
            flooding.send("a", Handshake(b"x"))
            typing.send("b", Handshake(b"x"))
            executor.receive(), executor.receive()
            flood(flooding, "a", 400 * MIB, lambda: held_back(relay, "slow_executor"))
            typing.send("b", Data(0, b"key"))
            before = 0
            while (frame := executor.receive()).stream_id != "b":
                before += len(RECORD)
            assert frame.body == Data(0, b"key")
            # What the kernel holds on both sides, and one turn; not the 256 KiB and more that wait in line.
            assert before < 5 * MIB


def test_a_harness_that_does_not_read_is_closed_and_the_others_go_on() -> None:
    with RelayProcess("--rate", "0", limits={"stalled_s": 0.5}) as relay:
        token = relay.token()
        with relay.executor(token) as executor, relay.harness(token, 2) as reading:
            granted = relay.grant(token, 1)
            slow = Peer(granted["url"], receive_buffer=4096)
            slow.send("a", Handshake(b"x"))
            reading.send("b", Handshake(b"x"))
            executor.receive(), executor.receive()
            flood(executor, "a", 400 * MIB, lambda: closed_as_slow(relay))
            # The last frame of the flood may be half sent, so this end of the script is of no more use.
            wait_until(lambda: closed_as_slow(relay))
            slow.close()
            assert executor.receive() == RelayFrame("a", Reset("harness_disconnected"))
            reading.send("b", Data(0, b"on"))
            assert executor.receive() == RelayFrame("b", Data(0, b"on"))
        assert "closing a harness that does not read" in relay.errors()


def pour(peer: Peer, count: int) -> None:
    """Send so many large records, until the connection ends."""
    with suppress(OSError):
        for _ in range(count):
            peer.send("a", Data(0, bytes(200_000)))


def test_an_environment_has_its_rate_and_another_does_not_notice() -> None:
    with RelayProcess("--rate", "1") as relay:
        one, other = relay.token(), relay.token("box-2")
        with (
            relay.executor(one) as executor,
            relay.harness(one) as harness,
            relay.executor(other, environment_id="box-2") as executor_two,
            relay.harness(other, environment_id="box-2") as harness_two,
        ):
            harness.send("a", Handshake(b"x"))
            executor.receive()
            begun = time.monotonic()
            sent = 0
            while sent < 2 * MIB:
                sent += len(harness.send("a", Data(0, RECORD)))
                executor.receive()
            assert time.monotonic() - begun > 0.8
            # These take their rate half a minute, and the other's goes meanwhile.
            pouring = threading.Thread(target=pour, args=(harness, 150), daemon=True)
            pouring.start()
            harness_two.send("b", Data(0, b"quick"))
            assert executor_two.receive().body == Data(0, b"quick")
            assert pouring.is_alive()
            harness.socket.shutdown(socket.SHUT_RDWR)
            pouring.join(WAIT)
        assert relay.metric('execserver_relay_held_back_total{reason="rate"}') >= 1


def test_many_streams_at_once(unhurried: RelayProcess) -> None:
    with unhurried as relay:
        token = relay.token()
        with relay.executor(token) as executor:
            harnesses = [relay.harness(token, seed) for seed in range(32)]
            for number, harness in enumerate(harnesses):
                for stream in range(4):
                    harness.send(f"{number}-{stream}", Data(stream, b"%d" % number))
            names = {executor.receive().stream_id for _ in range(128)}
            assert names == {f"{number}-{stream}" for number in range(32) for stream in range(4)}
            for name in names:
                executor.send(name, Data(0, name.encode()))
            for number, harness in enumerate(harnesses):
                got = {harness.receive().stream_id for _ in range(4)}
                assert got == {f"{number}-{stream}" for stream in range(4)}
                harness.close()


def test_small_frames_are_not_delayed(relay: RelayProcess, token: str) -> None:
    with relay.executor(token) as executor, relay.harness(token) as harness:
        number = quick = 0
        deadline = time.monotonic() + WAIT
        # On a busy machine some are late; of those that Nagle's algorithm delays none is quick.
        while quick < 6:
            number += 1
            assert time.monotonic() < deadline
            begun = time.perf_counter()
            harness.send("a", Data(number, b"k"))
            executor.receive()
            executor.send("a", Data(number, b"k"))
            harness.receive()
            quick += time.perf_counter() - begun < QUICK_S
        assert harness.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
