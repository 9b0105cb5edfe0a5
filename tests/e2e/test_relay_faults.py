"""Two of our ends with a relay between them, and trouble on the way: no message of a stream is lost."""

from __future__ import annotations

import hashlib
import random
import signal
import sys
import time
from collections.abc import Iterator

import gevent
import pytest

from execserver.client import ExecServerClient, Output
from tests.conftest import LONG
from tests.support.greenlets import the_hub_settles
from tests.support.remote_scene import RemoteScene, is_reliable, output
from tests.support.waiting import wait_until

__all__ = ["the_hub_settles"]

MIB = 1024 * 1024
STREAM_MIB = 200 if LONG else 12
STREAM_S = 60.0 if LONG else 1.5
CUT_S = 0.2
BROUGHT = 64 * 1024  # bytes by a connection before it is cut, also where connecting takes longer than CUT_S

# Prints numbered blocks of random bytes, no faster than it is told.
GENERATOR = """
import random, sys, time
chance, mib, seconds = random.Random(1), int(sys.argv[1]), float(sys.argv[2])
begun = time.monotonic()
for number in range(mib):
    sys.stdout.buffer.write(chance.randbytes(1 << 20))
    sys.stdout.buffer.flush()
    time.sleep(max(0.0, begun + seconds * (number + 1) / mib - time.monotonic()))
"""


@pytest.fixture
def scene() -> Iterator[RemoteScene]:
    with RemoteScene() as scene:
        yield scene


def expected_digest(mib: int) -> bytes:
    chance, digest = random.Random(1), hashlib.sha256()
    for _ in range(mib):
        digest.update(chance.randbytes(MIB))
    return digest.digest()


def digest_of_stream(client: ExecServerClient) -> bytes:
    process = client.start([sys.executable, "-c", GENERATOR, str(STREAM_MIB), str(STREAM_S)])
    digest, size = hashlib.sha256(), 0
    for event in process:
        if isinstance(event, Output):
            digest.update(event.data)
            size += len(event.data)
    assert size == STREAM_MIB * MIB
    assert process.wait() == 0
    return digest.digest()


@pytest.mark.timeout(300)
def test_a_stream_over_websockets_that_are_dropped_again_and_again(scene: RemoteScene) -> None:
    """The harness's every 200 ms or as soon as they bring something, the executor's now and then.

    The executor waits a second before it comes back.
    """
    with scene.connect() as client:
        assert is_reliable(client)
        cuts = 0

        def cut() -> None:
            nonlocal cuts
            while True:
                before = scene.harness_way.forwarded
                gevent.sleep(CUT_S)
                while scene.harness_way.forwarded < before + BROUGHT:
                    gevent.sleep(CUT_S / 10)
                cuts += 1
                (scene.executor_way if cuts % 40 == 4 else scene.harness_way).cut()

        cutter = gevent.spawn(cut)
        try:
            found = digest_of_stream(client)
        finally:
            cutter.kill()
        assert found == expected_digest(STREAM_MIB)
        assert client.resumptions == 0
        assert cuts >= STREAM_S / CUT_S / 2


@pytest.mark.timeout(120)
def test_input_and_calls_in_flight_survive_dropped_websockets(scene: RemoteScene) -> None:
    with scene.connect() as client:
        process = client.start(["cat"], pipe_stdin=True)
        wanted = b""
        cuts = 0

        def cut() -> None:
            nonlocal cuts
            while True:
                before = scene.harness_way.forwarded
                gevent.sleep(CUT_S / 2)
                while scene.harness_way.forwarded < before + BROUGHT:
                    gevent.sleep(CUT_S / 10)
                cuts += 1
                scene.harness_way.cut()

        cutter = gevent.spawn(cut)
        begun = time.monotonic()
        number = 0
        while time.monotonic() < begun + STREAM_S or cuts < 3:
            line = b"%d:%b\n" % (number, b"x" * random.Random(number).randrange(20_000))
            process.write(line)
            wanted += line
            number += 1
        process.close_stdin()
        assert output(process) == wanted
        cutter.kill()
        assert process.wait() == 0
        assert client.resumptions == 0


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("keeps_state", [True, False], ids=["with state", "without state"])
def test_a_relay_that_is_restarted_in_mid_stream(
    scene: RemoteScene, ending: signal.Signals, keeps_state: bool
) -> None:
    with scene.connect() as client:
        process = client.start(["sh", "-c", "for i in 1 2 3 4 5 6; do echo $i; sleep 0.3; done"])
        begun = next(iter(process))
        assert isinstance(begun, Output)
        scene.restart_relay(ending, keeps_state=keeps_state)
        assert begun.data + output(process) == b"1\n2\n3\n4\n5\n6\n"
        assert process.wait() == 0
        assert client.resumptions == 0


def test_a_client_that_leaves_while_its_way_is_cut_frees_its_session(scene: RemoteScene) -> None:
    client = scene.connect()
    session = client.session_id
    scene.harness_way.open_for_new = False
    scene.harness_way.cut()
    client.detach()
    scene.harness_way.open_for_new = True
    with scene.connect() as other:
        assert other.session_id != session


@pytest.mark.long
def test_a_killed_client_loses_its_stream_in_time(scene: RemoteScene) -> None:
    """Nobody tells the executor that a harness died: its stream ends after 20 s of silence at most."""
    client = scene.connect()
    scene.harness_way.open_for_new = False
    scene.harness_way.cut()
    wait_until(lambda: b"a harness left" in scene.log(), 30.0, pause=gevent.sleep)
    client.detach()


def test_a_client_that_does_not_read_holds_the_process_back(scene: RemoteScene) -> None:
    mib = 60
    with scene.connect() as client:
        process = client.start([sys.executable, "-c", GENERATOR, str(mib), "0"])
        sizes = [-1, scene.harness_way.forwarded]
        while sizes[-1] != sizes[-2] or sizes[-1] < MIB:
            gevent.sleep(0.5)
            sizes.append(scene.harness_way.forwarded)
        assert sizes[-1] < mib * MIB / 2
        scene.harness_way.cut()  # what was held back meanwhile is not lost either
        assert hashlib.sha256(output(process)).digest() == expected_digest(mib)
        assert process.wait() == 0
        assert client.resumptions == 0
