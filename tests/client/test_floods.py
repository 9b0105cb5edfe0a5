"""A server that sends without pause and says nothing: others of the client's program have their turns."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from websockets.protocol import CLIENT, OPEN, Protocol

from execserver.client import ExecServerClientConnectOptions, FileTooLarge, ProtocolViolation
from execserver.client.carriers.stdio_transport import StdioTransport
from execserver.client.carriers.websocket_transport import WebSocketTransport
from execserver.client.files import RemoteFile, RemoteFiles
from execserver.client.greenlets.router import Router
from execserver.client.rules import wire
from execserver.protocol import methods
from execserver.protocol.files import FsOpenMode
from execserver.remote.rendezvous import RendezvousSocket
from execserver.remote.tools import Timing
from execserver.wire.lines import LineSplitter

READS = 50
FLOODS = [b"\x89\x00", b"\x8a\x01x", b"\x00\x00"]


class Flood:
    """A socket, or a pipe, that always has more of the same, and then ends."""

    def __init__(self, data: bytes, begin: bytes = b"") -> None:
        pieces = [begin, *[data] * READS, b""]
        self._pieces: Iterator[bytes] = iter(pieces if begin else pieces[1:])

    def recv(self, size: int) -> bytes:
        return next(self._pieces)[:size]

    read = recv

    def recv_into(self, space: memoryview) -> int:
        data = self.recv(len(space))
        space[: len(data)] = data
        return len(data)

    def sendall(self, data: bytes) -> None:
        pass

    def settimeout(self, seconds: float | None) -> None:
        pass

    def close(self) -> None:
        pass


class FloodOfAKernel(Flood):
    """The same for what waits on a descriptor; there is always something to read on this one."""

    def __init__(self, data: bytes, begin: bytes) -> None:
        super().__init__(data, begin)
        self._ready, self._peer = socket.socketpair()
        self._peer.send(b"x")

    def fileno(self) -> int:
        return self._ready.fileno()

    def close(self) -> None:
        self._ready.close()
        self._peer.close()


def opened() -> Any:
    return Protocol(CLIENT, state=OPEN)


def turns_during(transport: Any) -> int:
    """Return how many turns another greenlet has until the carrier ends."""
    turns = 0

    def count() -> None:
        nonlocal turns
        while True:
            gevent.sleep(0)
            turns += 1

    counting = gevent.spawn(count)
    gevent.sleep(0)  # one turn, in which it begins to count
    try:
        assert transport.receive() is None
    finally:
        counting.kill()
    return turns


@pytest.mark.parametrize("flood", FLOODS, ids=["pings", "pongs", "empty fragments"])
def test_a_websocket_of_frames_without_messages(flood: bytes) -> None:
    begin = b"\x01\x00" if flood == FLOODS[2] else b""
    sock: Any = Flood(flood * 100, begin)
    transport = WebSocketTransport(sock, ExecServerClientConnectOptions())
    assert turns_during(transport) >= READS - 5
    transport.close()


@pytest.mark.parametrize("flood", [*FLOODS, b"\x81\x01t"], ids=["pings", "pongs", "empty fragments", "text"])
def test_a_relay_of_frames_without_messages(flood: bytes) -> None:
    begin = b"\x02\x00" if flood == FLOODS[2] else b""
    sock: Any = FloodOfAKernel(flood * 100, begin)
    transport = RendezvousSocket(sock, opened(), Timing())
    assert turns_during(transport) >= READS - 5
    transport.close()
    sock.close()


def test_blank_lines() -> None:
    transport = StdioTransport(["echo", "{}"], None, 1000)
    assert transport.receive() == b"{}"
    flood: Any = Flood(b"\n" * 1000)
    transport._output.close()
    transport._output = flood
    assert turns_during(transport) >= READS - 5
    transport.close()


def test_a_line_in_single_bytes_costs_little_more_than_its_length() -> None:
    lines = LineSplitter(100_000)
    for _ in range(50_000):
        lines.feed(b"ab")
    assert len(lines._parts) == 1
    assert lines.feed(b"\n") == [b"ab" * 50_000]


def test_json_as_deep_as_can_be_is_a_violation() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    params = b'{"processId":"p","seq":1,"stream":"stdout","chunk":"","more":%b}' % deep
    message = b'{"method":"process/output","params":%b}' % params
    assert wire.decode_output(message) is None
    with pytest.raises(ProtocolViolation):
        wire.decode_message(message)


def test_a_block_longer_than_asked_for_is_a_violation() -> None:
    session: Any = SimpleNamespace(
        extensions=SimpleNamespace(binary_messages=False),
        call=lambda method, params, **options: SimpleNamespace(chunk=b"x" * (params.len + 1)),
    )
    with pytest.raises(ProtocolViolation, match="asked for 10 bytes"):
        RemoteFile(session, "h", FsOpenMode.READ).read_block(0, 10)


class EndlessFile:
    """A session with a server whose file has no end, although it names a size."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.blocks = 0
        self.closed = False

    def call(self, method: Any, params: Any, **options: Any) -> Any:
        if method is methods.FS_READ_BLOCK:
            self.blocks += 1
            assert self.blocks < 100, "the client reads on and on"
            return SimpleNamespace(chunk=bytes(params.len))
        self.closed = self.closed or method is methods.FS_CLOSE
        return SimpleNamespace(size=self.size, handle_id="h", data_base64=bytes(self.size))


@pytest.mark.parametrize(("max_bytes", "blocks"), [(None, 9 + 8 + 1), (3 * 2**20, 4)])
def test_a_file_without_end_is_given_up(max_bytes: int | None, blocks: int) -> None:
    session: Any = EndlessFile(9 * 2**20)
    with pytest.raises(FileTooLarge):
        RemoteFiles(session, Router(gevent.spawn)).read_file("/f", max_bytes=max_bytes)
    assert (session.blocks, session.closed) == (blocks, True)


def test_a_small_file_is_bounded_by_the_caller_too() -> None:
    session: Any = EndlessFile(11)
    assert len(RemoteFiles(session, Router(gevent.spawn)).read_file("/f", max_bytes=11)) == 11
    with pytest.raises(FileTooLarge):
        RemoteFiles(session, Router(gevent.spawn)).read_file("/f", max_bytes=10)
