"""What becomes of a session when server, line or reader fail: no hang, and nothing lost in silence."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator

import msgspec
import pytest

from execserver.client.errors import (
    ConnectTimeout,
    ExecServerError,
    ResumeFailed,
    TransportClosed,
    WaitTimeout,
)
from execserver.client.options import ExecServerClientConnectOptions
from execserver.client.rules.event_log import Output
from execserver.client.rules.recovery import SessionState
from execserver.protocol.lifting import JsonText
from execserver.protocol.process_methods import ENVIRONMENT_INFO
from execserver.protocol.session import NoParams
from execserver_client import _websocket_link
from execserver_client._flow import Gate, Inlet
from execserver_client._session import Session
from execserver_client._transport import Transport
from execserver_client._websocket import WebSocketTransport
from tests.sdk.cutting_proxy import before
from tests.sdk.raw_server import Raw, raw
from tests.sdk.support import run_async
from tests.support.server_process import ServerProcess

OPTIONS = ExecServerClientConnectOptions(resume_interval=0.001, resume_window=30.0, max_unread_bytes=100_000)
BRIEF = OPTIONS.replace(resume_window=0.3)
CLOSE = 0x88


class Reader:
    """A listener that holds output until the test takes it."""

    def __init__(self, options: ExecServerClientConnectOptions) -> None:
        self.gate = Gate(options.max_unread_bytes, options.max_unread_bytes_while_waiting)
        self.inlet = Inlet()
        self.chunks: list[bytes] = []
        self.count = 0

    def on_notification(self, method: str, params: JsonText) -> None:
        pass

    def on_output(self, process_id: str, output: Output) -> None:
        self.chunks.append(output.data)
        self.count += 1
        self.gate.update(self.inlet, self.inlet.held + len(output.data))

    def take(self) -> list[bytes]:
        """Take all that is held."""
        taken, self.chunks = self.chunks, []
        self.gate.update(self.inlet, 0)
        return taken

    def on_lost(self, error: ExecServerError) -> None:
        pass

    def on_resumed(self) -> None:
        pass

    def on_ended(self, error: ExecServerError) -> None:
        pass


def session_of(
    url: str, options: ExecServerClientConnectOptions = OPTIONS, reader: Reader | None = None
) -> Session:
    """Return a session that is not open yet."""

    async def open_transport(timeout: float) -> Transport:
        return await WebSocketTransport.connect(url, options, timeout)

    reader = reader or Reader(options)
    return Session(open_transport, options, reader.gate, reader)


@pytest.fixture
def own() -> Iterator[ServerProcess]:
    """A server that the test may harm."""
    server = ServerProcess()
    try:
        yield server
    finally:
        server.kill()


def test_a_server_that_is_killed_ends_every_call_and_then_the_session(own: ServerProcess) -> None:
    async def main() -> None:
        session = session_of(own.url, BRIEF)
        await session.open()
        calls = [asyncio.create_task(session.call(ENVIRONMENT_INFO, NoParams())) for _ in range(50)]
        own.process.kill()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(end, TransportClosed) or not isinstance(end, BaseException) for end in ends)
        own.process.wait(30)
        with pytest.raises(ResumeFailed, match="not resumed within"):
            await session.call(ENVIRONMENT_INFO, NoParams(), resend=True)
        assert session.state is SessionState.ENDED
        await session.close()

    run_async(main())


def test_a_server_that_is_stopped_costs_a_call_its_limit_and_nothing_more(own: ServerProcess) -> None:
    async def main() -> None:
        session = session_of(own.url)
        await session.open()
        own.process.send_signal(signal.SIGSTOP)
        with pytest.raises(WaitTimeout):
            await session.call(ENVIRONMENT_INFO, NoParams(), timeout=0.05)
        own.process.send_signal(signal.SIGCONT)
        assert await session.call(ENVIRONMENT_INFO, NoParams())
        assert session.resumptions == 0
        await session.close()

    run_async(main())


def test_a_server_that_stays_stopped_is_missed(own: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call without a limit does not wait for ever."""
    monkeypatch.setattr(_websocket_link, "PING_INTERVAL_S", 0.05)
    monkeypatch.setattr(_websocket_link, "PONG_TIMEOUT_S", 2.0)

    async def main() -> None:
        session = session_of(own.url, BRIEF)
        await session.open()
        own.process.send_signal(signal.SIGSTOP)
        with pytest.raises(TransportClosed, match="no pong within 2 s"):
            await session.call(ENVIRONMENT_INFO, NoParams())
        with pytest.raises(ResumeFailed):
            await session.call(ENVIRONMENT_INFO, NoParams())
        await session.close()
        own.process.send_signal(signal.SIGCONT)

    run_async(main())


def test_calls_that_may_be_repeated_survive_every_cut(url: str) -> None:
    async def main() -> None:
        async with before(url) as proxy:
            session = session_of(proxy.url)
            await session.open()
            for _ in range(20):
                calls = [
                    asyncio.create_task(session.call(ENVIRONMENT_INFO, NoParams(), resend=True))
                    for _ in range(10)
                ]
                await asyncio.sleep(0)
                proxy.cut()
                assert len(await asyncio.gather(*calls)) == 10
            assert session.resumptions >= 10
            assert session.state is SessionState.OPEN
            await session.close()

    run_async(main())


def test_a_call_that_may_not_be_repeated_is_told_of_the_cut(url: str) -> None:
    async def main() -> None:
        async with before(url) as proxy:
            session = session_of(proxy.url)
            await session.open()
            params = {"processId": "p", "argv": ["sleep", "60"], "cwd": "/", "env": {}, "tty": False}
            await session.request("process/start", params)
            waiting = asyncio.create_task(
                session.request("process/read", {"processId": "p", "waitMs": 60_000})
            )
            await session.call(ENVIRONMENT_INFO, NoParams())
            proxy.cut()
            with pytest.raises(TransportClosed):
                await waiting
            answer = await session.request("process/terminate", {"processId": "p"}, resend=True)
            assert msgspec.json.decode(bytes(answer)) == {"running": True}
            await session.close()

    run_async(main())


async def greeted(peer: Raw) -> None:
    """Let a client in."""
    await peer.accept()
    request = json.loads((await peer.frame())[1])
    session = request["params"]["resumeSessionId"] or "s"
    peer.send(json.dumps({"id": request["id"], "result": {"sessionId": session}}).encode())


async def floods(peer: Raw) -> None:
    await greeted(peer)
    for number in range(20_000):
        peer.send(b'{"id":%d,"result":{}}' % (number + 1000))
    while (frame := await peer.frame())[0] != CLOSE:
        request = json.loads(frame[1])
        if "id" in request:
            peer.send(json.dumps({"id": request["id"], "result": "fine"}).encode())


def test_answers_that_nobody_asked_for_change_nothing() -> None:
    async def main() -> None:
        async with raw(floods) as url:
            session = session_of(url)
            await session.open()
            assert msgspec.json.decode(bytes(await session.request("m", {}))) == "fine"
            await session.close()

    run_async(main())


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\x81\x04\xff\xfe{}",
        b"\x81\x02{}",
        b'\x81\x1a{"id":1,"method":"ask","x":1}'[:28],
        b"\x81\x7f\x7f" + b"\xff" * 7,
        b"\x81\x7e\xff\xff" + b"[" * 65535,
        b"\xc1\x01x",
        b"\x00" * 64,
    ],
)
def test_a_server_that_talks_rubbish_ends_even_a_call_that_is_repeated(rubbish: bytes) -> None:
    async def play(peer: Raw) -> None:
        await greeted(peer)
        await peer.frame()  # initialized
        peer.writer.write(rubbish)
        await peer.wait_for_end()

    async def main() -> None:
        async with raw(play) as url:
            session = session_of(url, BRIEF)
            await session.open()
            with pytest.raises(TransportClosed):
                await session.request("m", {}, resend=True)
            await session.close()

    run_async(main())


def test_a_server_that_never_greets_is_given_up() -> None:
    async def play(peer: Raw) -> None:
        await peer.accept()
        while True:
            peer.send(b'{"method":"some/thing","params":{}}')
            await peer.writer.drain()
            await asyncio.sleep(0.001)

    async def main() -> None:
        async with raw(play) as url:
            with pytest.raises(ConnectTimeout, match="initialize was not answered"):
                await session_of(url, BRIEF.replace(initialize_timeout=0.05)).open()

    run_async(main())


def test_a_reader_that_stops_stops_the_server_and_loses_nothing() -> None:
    chunk = "eHh4eHh4eHh4" * 100

    async def play(peer: Raw) -> None:
        await greeted(peer)
        for number in range(1, 20_001):
            peer.send(
                b'{"method":"process/output","params":{"processId":"p","seq":%d,"stream":"stdout","chunk":"%b"}}'
                % (number, chunk.encode())
            )
            sent.append(number)
            await peer.writer.drain()
        await peer.wait_for_end()

    async def main() -> None:
        async with raw(play) as url:
            reader = Reader(OPTIONS)
            session = session_of(url, OPTIONS, reader)
            await session.open()
            while not reader.gate.must_stop():
                await asyncio.sleep(0.001)
            held = reader.inlet.held
            for _ in range(200):
                await asyncio.sleep(0)
            assert reader.inlet.held == held < 200_000
            assert len(sent) < 20_000  # of 18 MB
            taken = 0
            while taken < 20_000:
                taken += len(reader.take())
                await asyncio.sleep(0)
            assert reader.count == 20_000
            await session.close()

    sent: list[int] = []
    run_async(main())


def test_a_full_reader_does_not_block_one_who_waits_for_an_answer() -> None:
    async def play(peer: Raw) -> None:
        await greeted(peer)
        await peer.frame()
        request = json.loads((await peer.frame())[1])
        for number in range(1, 1001):
            peer.send(
                b'{"method":"process/output","params":{"processId":"p","seq":%d,"stream":"stdout","chunk":"%b"}}'
                % (number, b"eHh4" * 200)
            )
        peer.send(json.dumps({"id": request["id"], "result": 1}).encode())
        await peer.wait_for_end()

    async def main() -> None:
        async with raw(play) as url:
            reader = Reader(OPTIONS)
            session = session_of(url, OPTIONS, reader)
            await session.open()
            assert bytes(await session.request("m", {})) == b"1"
            assert len(reader.take()) == 1000
            await session.close()

    run_async(main())
