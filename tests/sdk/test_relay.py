"""The asyncio client's way through our relay to our executor: what it survives, and what it refuses."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from execserver.client.errors import RegistryRefused, ResumeFailed, TransportClosed
from execserver.client.rules.recovery import SessionState
from execserver_client._relay import RelayTransport
from execserver_client._relay_route import relay_route
from execserver_client.connecting import connect
from execserver_client.options import ConnectOptions
from execserver_client.process import Process
from tests.conftest import LONG
from tests.sdk.json_talk import Talk
from tests.sdk.relay_scene import RelayScene, until
from tests.sdk.support import run_async
from tests.support.source import ROOT

MIB = 1024 * 1024
BLOCKS = 200 if LONG else 16

# Prints blocks of random bytes; between them it waits for nothing but a little time.
GENERATOR = """
import random, sys, time
chance = random.Random(1)
for number in range(int(sys.argv[1])):
    sys.stdout.buffer.write(chance.randbytes(1 << 18))
    sys.stdout.buffer.flush()
    time.sleep(0.05)
"""


def expected() -> str:
    chance, digest = random.Random(1), hashlib.sha256()
    for _ in range(BLOCKS):
        digest.update(chance.randbytes(MIB // 4))
    return digest.hexdigest()


@pytest.fixture
def scene(relay_scene: RelayScene) -> RelayScene:
    """A relay and an executor for the tests that leave them as they are."""
    return relay_scene


@pytest.fixture
def own_scene() -> Iterator[RelayScene]:
    """A relay and an executor of this test's own."""
    with RelayScene() as scene:
        yield scene


def run(scene: RelayScene, test: Coroutine[object, object, None]) -> None:
    """Run a test, at whose end the proxy carries nothing any more."""

    async def whole() -> None:
        try:
            await test
        finally:
            scene.way.cut()

    run_async(whole())


@asynccontextmanager
async def connected(scene: RelayScene) -> AsyncIterator[Talk]:
    """Give a session."""
    transport = await relay_route(scene.args(), {}).open_transport(10)
    talk = Talk(transport)
    await talk.initialize()
    assert transport.is_reliable
    try:
        yield talk
    finally:
        await transport.close()


def test_a_process_runs_through_the_relay(scene: RelayScene) -> None:
    async def test() -> None:
        async with connected(scene) as talk:
            await talk.start("p", ["sh", "-c", "echo out; head -c 3000000 /dev/zero"])
            assert await talk.output("p") == b"out\n" + bytes(3_000_000)

    run(scene, test())


def test_many_senders_at_once_get_their_answers(scene: RelayScene) -> None:
    async def test() -> None:
        async with connected(scene) as talk:
            transport, numbers = talk.transport, set(range(100, 160))
            path = "file:///" + "x" * 100_000
            async with asyncio.TaskGroup() as group:
                for number in numbers:
                    call = {"id": number, "method": "fs/getMetadata", "params": {"path": path}}
                    group.create_task(transport.send(json.dumps(call).encode()))
                answers = [json.loads(await transport.receive() or b"") for _ in numbers]
            assert {answer["id"] for answer in answers} == numbers

    run(scene, test())


def test_a_stream_survives_websockets_that_are_cut_again_and_again(scene: RelayScene) -> None:
    async def cut() -> None:
        for at in range(len(scene.way.from_server), 1 << 40, 256 * 1024):
            await until(partial(has_carried, at))
            scene.way.cut()

    def has_carried(count: int) -> bool:
        return len(scene.way.from_server) > count

    async def test() -> None:
        async with connected(scene) as talk:
            connections = scene.way.connections
            cutter = asyncio.create_task(cut())
            await talk.start("p", [sys.executable, "-c", GENERATOR, str(BLOCKS)])
            found = hashlib.sha256(await talk.output("p")).hexdigest()
            cutter.cancel()
            await asyncio.wait([cutter])
            assert found == expected()
            assert scene.way.connections > connections + 3

    run(scene, test())


@pytest.mark.long
def test_a_box_survives_a_relay_that_is_killed_and_started_anew(own_scene: RelayScene) -> None:
    """Nothing is lost or repeated, calls in flight are answered, and no session is resumed."""

    async def test() -> None:
        async with connect(own_scene.box, token=own_scene.token) as box:
            carried = len(own_scene.way.from_server)
            process = await box.start([sys.executable, "-c", GENERATOR, str(BLOCKS)])
            reading = asyncio.create_task(digest_of(process))
            running = asyncio.create_task(box.run(["sh", "-c", "sleep 0.7; echo done"]))
            await until(lambda: len(own_scene.way.from_server) > carried + MIB // 2)
            await asyncio.to_thread(own_scene.restart_relay)
            assert await reading == expected()
            assert (await running).text == "done\n"
            assert (await box.status()).status.value == "ready"
            assert box.resumptions == 0

    asyncio.run(test())  # what the scene starts anew would count as left behind


async def digest_of(process: Process) -> str:
    digest = hashlib.sha256()
    async for data in process.stdout:
        digest.update(data)
    return digest.hexdigest()


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_killed_executor_ends_its_boxes_in_time(own_scene: RelayScene) -> None:
    """Its stream ends after 20 s of silence, and then its session cannot be resumed."""

    async def test() -> None:
        options = ConnectOptions(resume_window=2.0)
        async with connect(own_scene.box, token=own_scene.token, options=options) as box:
            process = await box.start(["sleep", "1000"])
            own_scene.executor.kill()
            began = time.monotonic()
            with pytest.raises(TransportClosed):
                await box.status()
            with pytest.raises(ResumeFailed):
                await process.wait()
            assert 15 < time.monotonic() - began < 40
            assert box.state is SessionState.ENDED

    asyncio.run(test())


def test_a_token_that_the_relay_does_not_know_is_refused_for_good(scene: RelayScene) -> None:
    async def test() -> None:
        route = relay_route(scene.args(token="xr_wrong"), {})
        with pytest.raises(RegistryRefused, match="401 Unauthorized"):
            await route.open_transport(5)

    run(scene, test())


@pytest.mark.long
def test_an_executor_with_other_keys_is_not_taken_for_the_first_one(own_scene: RelayScene) -> None:
    async def test() -> None:
        route = relay_route(own_scene.args(), {})
        transport = await route.open_transport(10)
        await Talk(transport).initialize()
        await asyncio.to_thread(own_scene.replace_executor)
        own_scene.way.cut()
        with pytest.raises(TransportClosed, match=r"relay_executor_taken_over|another executor"):
            await transport.receive()
        await transport.close()
        with pytest.raises(RegistryRefused, match="another executor has taken over"):
            await route.open_transport(5)

    asyncio.run(test())  # what the scene starts anew would count as left behind


def test_a_stream_is_left_alone_by_a_transport_that_is_closed_while_it_connects(scene: RelayScene) -> None:
    async def test() -> None:
        route = relay_route(scene.args(), {})
        transport = await route.open_transport(10)
        first = await Talk(transport).initialize()
        scene.way.refuse(True)
        scene.way.cut()
        await until(lambda: transport._link is None)
        await transport.close()
        scene.way.refuse(False)
        # The executor hears of the abandoned stream, so its session can be resumed at once.
        transport = await route.open_transport(10)
        params = {"clientName": "test", "resumeSessionId": first["sessionId"]}
        assert (await Talk(transport).call("initialize", params))["sessionId"] == first["sessionId"]
        await transport.close()

    run(scene, test())


def test_who_does_not_read_is_sent_no_more_than_fits(scene: RelayScene) -> None:
    async def test() -> None:
        async with connected(scene) as talk:
            await talk.start("p", ["sh", "-c", "head -c 40000000 /dev/zero"])
            transport: RelayTransport = talk.transport
            await until(lambda: transport._course.is_holding and transport._stream._dropped)
            assert transport._course._inbox_bytes < 5 * MIB
            assert transport._stream._kept_bytes < 5 * MIB
            assert await talk.output("p") == bytes(40_000_000)

    run(scene, test())


def test_a_cancelled_attempt_leaves_nothing_open(scene: RelayScene) -> None:
    """Whichever step it has come to."""

    async def test() -> None:
        for turns in range(0, 60, 4 if LONG else 12):
            attempt = asyncio.create_task(relay_route(scene.args(), {}).open_transport(10))
            for _ in range(turns):
                await asyncio.sleep(0.0005)
            attempt.cancel()
            try:
                await (await attempt).close()
            except asyncio.CancelledError:
                pass

    run(scene, test())


def test_without_the_cryptography_the_error_says_what_brings_it() -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; sys.modules['cryptography'] = None\n"
        "from execserver.client.errors import RemoteModeUnavailable\n"
        "from execserver.client.options import RemoteExecServerConnectArgs\n"
        "from execserver_client._relay_route import relay_route\n"
        "args = RemoteExecServerConnectArgs(url='https://relay.test', environment_id='e', token='t')\n"
        "try: relay_route(args)\n"
        "except RemoteModeUnavailable as error: print(error)"
    )
    command = [sys.executable, "-I", "-c", code, str(ROOT), str(ROOT / "sdk")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert "execserver-client[relay]" in done.stdout
