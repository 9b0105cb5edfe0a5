"""The WebSocket of the asyncio client, against a real server and against one that says what it wants."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from weakref import ref

import pytest

from execserver.client.errors import (
    ConnectFailed,
    ConnectTimeout,
    InvalidUrl,
    ProtocolViolation,
    TransportClosed,
)
from execserver.client.options import ExecServerClientConnectOptions
from execserver_client import _websocket_link
from execserver_client._websocket import WebSocketTransport
from tests.sdk.raw_server import Raw, raw
from tests.sdk.support import run_async
from tests.support.certificates import make_authority
from tests.support.server_process import ServerProcess

OPTIONS = ExecServerClientConnectOptions(max_message_bytes=8 * 1024 * 1024, send_fragment_bytes=100_000)
HELLO = json.dumps({"id": 1, "method": "initialize", "params": {"clientName": "t"}}).encode()

Play = Callable[[Raw], Awaitable[None]]
Use = Callable[[WebSocketTransport], Awaitable[None]]


async def greet(url: str, options: ExecServerClientConnectOptions = OPTIONS) -> None:
    """Connect to a real server and have it answer."""
    transport = await WebSocketTransport.connect(url, options, 30)
    try:
        await transport.send(HELLO)
        answer = await transport.receive()
        assert answer is not None
        assert json.loads(answer)["result"]["sessionId"]
    finally:
        await transport.close()
        await transport.close()


def between(play: Play, use: Use, options: ExecServerClientConnectOptions = OPTIONS) -> None:
    """Play a server against the use of one connection to it."""

    async def main() -> None:
        async with raw(play) as url:
            transport = await WebSocketTransport.connect(url, options, 30)
            try:
                await use(transport)
            finally:
                await transport.close()

    run_async(main())


def test_a_real_server_answers(url: str) -> None:
    run_async(greet(url))


def test_a_name_is_looked_up_and_leaves_no_thread(url: str) -> None:
    run_async(greet(url.replace("127.0.0.1", "localhost")))


def test_a_server_behind_a_unix_socket_answers(socket_folder: str) -> None:
    with ServerProcess(listen=f"unix://{socket_folder}/s"):
        run_async(greet(f"unix://{socket_folder}/s"))


def test_tls_is_checked_against_the_given_roots(tmp_path: Path) -> None:
    authority = make_authority()
    ca, both = tmp_path / "ca.pem", tmp_path / "both.pem"
    ca.write_bytes(authority.pem)
    both.write_bytes(authority.issue("127.0.0.1"))
    words = ("--tls-cert", str(both), "--tls-key", str(both))
    with ServerProcess(listen="wss://127.0.0.1:0", options=words) as server:
        run_async(greet(server.url, OPTIONS.replace(ca_file=str(ca))))
        with pytest.raises(ConnectFailed, match="certificate verify failed"):
            run_async(greet(server.url))
        context = ssl.create_default_context(cafile=str(ca))
        run_async(greet(server.url, OPTIONS.replace(ssl_context=context)))


@pytest.mark.parametrize("url", ["ws://192.0.2.1:1", "ws://devbox.example:1"])
def test_a_token_is_never_sent_in_clear_to_another_machine(url: str) -> None:
    with pytest.raises(InvalidUrl, match="others could read it"):
        run_async(greet(url, OPTIONS.replace(token="abc")))


def test_messages_behind_the_answer_and_in_pieces_arrive_whole() -> None:
    big = b"x" * 3_000_000

    async def play(peer: Raw) -> None:
        await peer.accept(b"\x81\x05early")
        peer.send(b"ping", 0x89)
        peer.send(b"", 0x8A)
        peer.send(big[:1_000_000], 0x01)
        peer.send(b"", 0x89)
        peer.send(big[1_000_000:], 0x80)
        assert await peer.frame() == (0x8A, b"ping")
        peer.send(b"\xc3\xa4")
        await peer.wait_for_end()

    async def use(transport: WebSocketTransport) -> None:
        assert [await transport.receive() for _ in range(3)] == [b"early", big, b"\xc3\xa4"]

    between(play, use)


def test_a_large_message_is_sent_in_fragments() -> None:
    message = b"y" * 250_000

    async def play(peer: Raw) -> None:
        await peer.accept()
        frames = [await peer.frame() for _ in range(3)]
        assert [lead for lead, _ in frames] == [0x01, 0x00, 0x80]
        peer.send(b"".join(part for _, part in frames))
        await peer.wait_for_end()

    async def use(transport: WebSocketTransport) -> None:
        await transport.send(message)
        assert await transport.receive() == message

    between(play, use)


@pytest.mark.parametrize(
    ("data", "error", "told"),
    [
        (b"\x81\xff" + bytes(20), ProtocolViolation, "rules of WebSocket"),
        (b"\x81\x7f" + (1 << 40).to_bytes(8, "big"), ProtocolViolation, "rules of WebSocket"),
        (b"\xf3\x00", ProtocolViolation, "rules of WebSocket"),
        (b"\x88\x02\x03\xe9", TransportClosed, r"the server closed the connection \(1001\)"),
        (b"\x81\x7f", TransportClosed, "the server closed the connection"),
    ],
)
def test_what_arrived_before_the_end_is_received_and_the_end_is_told(
    data: bytes, error: type[Exception], told: str
) -> None:
    async def play(peer: Raw) -> None:
        await peer.accept()
        peer.send(b"before")
        peer.writer.write(data)
        await peer.writer.drain()
        if data == b"\x81\x7f":
            peer.writer.write_eof()
        await peer.wait_for_end()

    async def use(transport: WebSocketTransport) -> None:
        assert await transport.receive() == b"before"
        for _ in range(2):
            with pytest.raises(error, match=told):
                await transport.receive()
        with pytest.raises(TransportClosed):
            await transport.send(b"more")

    between(play, use)


def test_a_server_that_does_not_read_holds_up_senders_and_nothing_else() -> None:
    """A sender who is cancelled meanwhile has sent his message or nothing."""

    async def play(peer: Raw) -> None:
        # The kernel would take more and more for a reader that does not read.
        peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 * 1024)
        await peer.accept()
        reading.clear()
        await reading.wait()
        while True:
            lead, payload = await peer.frame()
            got.append((lead, payload[:1], len(payload)))

    async def use(transport: WebSocketTransport) -> None:
        while reading.is_set():
            await asyncio.sleep(0)
        senders = [asyncio.create_task(transport.send(letter * 90_000)) for letter in letters]
        while transport._link.can_write:
            await asyncio.sleep(0)
        for _ in range(200):
            await asyncio.sleep(0)
        waiting = [each for each in senders if not each.done()]
        assert len(waiting) > 100
        for sender in waiting[:50]:
            sender.cancel()
        reading.set()
        ends = await asyncio.gather(*senders, return_exceptions=True)
        sent = [letter for letter, end in zip(letters, ends, strict=True) if end is None]
        assert len(sent) == len(letters) - 50
        while len(got) < len(sent):
            await asyncio.sleep(0.001)
        assert got == [(0x81, letter, 90_000) for letter in sent]

    letters = [bytes((97 + number % 26,)) for number in range(300)]
    got: list[tuple[int, bytes, int]] = []
    reading = asyncio.Event()
    reading.set()
    between(play, use)


def test_a_reader_that_stops_stops_the_server() -> None:
    async def play(peer: Raw) -> None:
        await peer.accept()
        for number in range(2000):
            peer.send(b"%5d" % number + b"z" * 20_000)
            written.append(number)
            await peer.writer.drain()
        await peer.wait_for_end()

    async def use(transport: WebSocketTransport) -> None:
        while not transport._inbox._is_paused:
            await asyncio.sleep(0.001)
        held = transport._inbox._held
        for _ in range(200):
            await asyncio.sleep(0)
        assert transport._inbox._held == held < 2_000_000
        assert len(written) < 1500  # of 40 MB
        for number in range(2000):
            message = await transport.receive()
            assert message is not None
            assert message[:5] == b"%5d" % number

    written: list[int] = []
    between(play, use)


def test_who_let_the_server_go_on_is_not_held_by_what_listens() -> None:
    class Reader:
        """Somebody whom the context of a task holds."""

    reader: ContextVar[Reader] = ContextVar("reader")

    async def use(transport: WebSocketTransport) -> None:
        async def go_on() -> ref[Reader]:
            found = Reader()
            reader.set(found)
            transport._link.pause_reading()
            transport._link.resume_reading()
            return ref(found)

        held = await asyncio.create_task(go_on())
        await asyncio.sleep(0)  # the loop lets go of the task with its turn
        assert held() is None

    async def play(peer: Raw) -> None:
        await peer.accept()
        await peer.wait_for_end()

    between(play, use)


def test_a_server_that_is_not_heard_since_nobody_reads_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_websocket_link, "PING_INTERVAL_S", 0.02)
    monkeypatch.setattr(_websocket_link, "PONG_TIMEOUT_S", 5.0)

    async def play(peer: Raw) -> None:
        await peer.accept()
        for _ in range(3):
            peer.send(b"x" * 2_000_000)
        reading.set()
        while True:
            lead, payload = await peer.frame()
            if lead == 0x89:
                peer.send(payload, 0x8A)
                pongs.append(payload)

    async def use(transport: WebSocketTransport) -> None:
        await reading.wait()
        while not transport._inbox._is_paused:
            await asyncio.sleep(0.001)
        assert transport._link._timer is None  # neither a ping nor the end of patience is due
        for _ in range(3):
            assert await transport.receive() == b"x" * 2_000_000
        seen = len(pongs)
        while len(pongs) < seen + 2:
            await asyncio.sleep(0.001)
        assert transport._end is None

    reading = asyncio.Event()
    pongs: list[bytes] = []
    between(play, use)


def test_a_flood_of_pings_lets_others_run_and_gets_few_answers() -> None:
    async def play(peer: Raw) -> None:
        await peer.accept(b"\x81\x05begin")
        for number in range(20_000):
            peer.send(b"%d" % number, 0x89)
        peer.send(b"done")
        await peer.writer.drain()
        while answers[-1:] != [b"19999"]:
            answers.append((await peer.frame())[1])
        await peer.wait_for_end()

    async def use(transport: WebSocketTransport) -> None:
        assert await transport.receive() == b"begin"
        last = asyncio.create_task(transport.receive())
        turns = 0
        while not last.done():
            turns += 1
            await asyncio.sleep(0)
        assert await last == b"done"
        assert turns > 3
        while answers[-1:] != [b"19999"]:
            await asyncio.sleep(0.001)
        assert len(answers) < 1000

    answers: list[bytes] = []
    between(play, use)


async def never(peer: Raw) -> None:
    await peer.wait_for_end()


async def rubbish(peer: Raw) -> None:
    await peer.reader.readuntil(b"\r\n\r\n")
    peer.writer.write(b"HTTP/1.1 101 Fine\r\n" + b"X: y\r\n" * 1_000_000)
    await peer.wait_for_end()


async def refusing(peer: Raw) -> None:
    await peer.reader.readuntil(b"\r\n\r\n")
    peer.writer.write(b"HTTP/1.1 403 No\r\nContent-Length: 4\r\n\r\n\x1b[2J")
    await peer.wait_for_end()


async def ending(peer: Raw) -> None:
    await peer.reader.readuntil(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("play", "patience", "error", "told"),
    [
        (never, 0.05, ConnectTimeout, "did not answer within 0.05 s"),
        (rubbish, 30, ConnectFailed, "no WebSocket server there"),
        (refusing, 30, ConnectFailed, "status 403"),
        (ending, 30, ConnectFailed, "no WebSocket server there"),
    ],
)
def test_a_server_that_does_not_upgrade_is_told(
    play: Play, patience: float, error: type[Exception], told: str
) -> None:
    async def main() -> None:
        async with raw(play) as url:
            with pytest.raises(error, match=told):
                await WebSocketTransport.connect(url, OPTIONS, patience)

    run_async(main())


def test_nobody_there_is_told(unused_url: str) -> None:
    with pytest.raises(ConnectFailed, match=r"Connect call failed|refused"):
        run_async(greet(unused_url))


@pytest.fixture
def unused_url() -> str:
    """Where nobody listens: the port was free a moment ago."""
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"ws://127.0.0.1:{sock.getsockname()[1]}"


def test_a_close_that_is_cancelled_leaves_no_socket() -> None:
    async def use(transport: WebSocketTransport) -> None:
        task = asyncio.create_task(transport.close())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def play(peer: Raw) -> None:
        await peer.accept()
        await peer.wait_for_end()

    between(play, use)
