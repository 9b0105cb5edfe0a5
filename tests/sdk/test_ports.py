"""Forwarded ports with the asyncio client and a real server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from execserver.client.errors import (
    InternalError,
    InvalidRequestError,
    ProtocolViolation,
    TransportClosed,
    UnsupportedByServer,
    WaitTimeout,
)
from execserver.protocol.environment import Extensions
from execserver.protocol.ports import PortAcceptedNotification, PortAddress, PortDataNotification
from execserver_client.ports import PortStream
from tests.sdk.cutting import cutting
from tests.sdk.parts import Client, connect
from tests.sdk.settling import until, until_equal
from tests.sdk.support import run_async
from tests.support.server_process import ServerProcess

MIB = 1024 * 1024
HERE = "127.0.0.1"


class Far:
    """A server of this test, and the connections made to it."""

    def __init__(self) -> None:
        self.port = 0
        self.accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        await self.accepted.put((reader, writer))

    async def close(self) -> None:
        """End every connection."""
        for writer in self._writers:
            await ended(writer)


@asynccontextmanager
async def listener() -> AsyncIterator[Far]:
    far = Far()
    server = await asyncio.start_server(far.take, HERE, 0, limit=65536)
    far.port = server.sockets[0].getsockname()[1]
    try:
        yield far
    finally:
        server.close()
        await far.close()


async def everything(stream: PortStream) -> bytes:
    return b"".join([data async for data in stream])


async def ended(writer: asyncio.StreamWriter) -> None:
    """End a connection of this test at once."""
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


async def streams_of(client: Client) -> tuple[Any, ...]:
    return (await client.ports.list()).streams


def test_bytes_go_both_ways_and_each_end_may_stop(server: ServerProcess) -> None:
    async def play() -> None:
        data = os.urandom(2 * MIB)
        async with connect(server.url) as client, listener() as far:
            async with client.ports.open("localhost", far.port) as stream:
                reader, writer = await far.accepted.get()

                async def say() -> None:
                    await stream.write(data)
                    await stream.write_eof()

                saying = asyncio.create_task(say())
                assert await reader.read() == data
                writer.write(data)
                writer.write_eof()
                assert await everything(stream) == data
                await saying
            assert await streams_of(client) == ()

    run_async(play())


def test_a_reader_that_takes_nothing_stops_the_sender(server: ServerProcess) -> None:
    async def play() -> None:
        async with (
            connect(server.url) as client,
            listener() as far,
            client.ports.open(HERE, far.port) as stream,
        ):
            _, writer = await far.accepted.get()
            writer.write(b"x" * (64 * MIB))
            draining = asyncio.create_task(writer.drain())
            await until(lambda: stream.arrived == MIB)
            await client.call("environment/info", {})  # the connection is not held up
            assert stream.arrived == MIB
            assert not draining.done()
            draining.cancel()

    run_async(play())


def test_what_connects_to_a_listener_is_passed_on(server: ServerProcess) -> None:
    async def play() -> None:
        async with connect(server.url) as client:
            async with client.ports.listen() as listening:
                reader, writer = await asyncio.open_connection(HERE, listening.address.port)
                writer.write(b"hello")
                async for stream in listening:
                    assert await stream.read() == b"hello"
                    await stream.write(b"there")
                    assert await reader.readexactly(5) == b"there"
                    await stream.aclose()
                    break
                assert await reader.read() == b""
                await ended(writer)
                with pytest.raises(WaitTimeout):
                    await listening.accept(0.001)
                _, untaken = await asyncio.open_connection(HERE, listening.address.port)
                await until(lambda: listening._end.waiting() == 1)
            assert await listening.accept() is None
            assert await streams_of(client) == ()  # what nobody took is closed, too
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(HERE, listening.address.port)
            await ended(untaken)

    run_async(play())


def test_a_stream_goes_on_over_lost_connections(server: ServerProcess) -> None:
    async def play() -> None:
        with cutting(server.url) as proxy:
            data = os.urandom(MIB)
            async with (
                connect(proxy.url) as client,
                listener() as far,
                client.ports.open(HERE, far.port) as stream,
            ):
                reader, writer = await far.accepted.get()
                echoed = asyncio.create_task(reader.readexactly(MIB))
                said = asyncio.create_task(stream.write(data))
                got = b""
                for start in range(0, MIB, MIB // 4):
                    writer.write(data[start : start + MIB // 4])
                    proxy.cut()
                    while len(got) < start + MIB // 4:
                        got += await stream.read()
                assert got == data
                await said
                assert await echoed == data

    run_async(play())


WRITES: dict[str, Callable[[PortStream, bytes], Awaitable[None]]] = {
    "write": lambda stream, data: stream.write(data),
    "write_all": lambda stream, data: stream.write_all([data]),
}


@pytest.mark.parametrize("way", WRITES)
def test_a_cancelled_write_leaves_no_hole(server: ServerProcess, way: str) -> None:
    async def play() -> None:
        data = os.urandom(32 * MIB)
        async with (
            connect(server.url) as client,
            listener() as far,
            client.ports.open(HERE, far.port) as stream,
        ):
            reader, _ = await far.accepted.get()
            writing = asyncio.ensure_future(WRITES[way](stream, data))
            first = await reader.readexactly(100_000)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            await WRITES[way](stream, b"the end")
            await stream.write_eof()
            got = first + await reader.read()
            assert got.endswith(b"the end")
            assert len(got) < len(data)
            assert data.startswith(got[:-7])

    run_async(play())


def test_pieces_go_ahead_of_their_answers_over_lost_connections(server: ServerProcess) -> None:
    async def play() -> None:
        data = os.urandom(8 * MIB)

        async def with_cuts(proxy: Any) -> AsyncIterator[bytes]:
            for number, start in enumerate(range(0, len(data), 50_000)):
                if number % 40 == 39:
                    proxy.cut()
                yield data[start : start + 50_000]

        with cutting(server.url) as proxy:
            async with (
                connect(proxy.url) as client,
                listener() as far,
                client.ports.open(HERE, far.port) as stream,
            ):
                reader, _ = await far.accepted.get()
                got = asyncio.create_task(reader.read(-1))
                await stream.write_all(with_cuts(proxy))
                await stream.write_all([b"the", b" end"])
                await stream.write_eof()
                assert await got == data + b"the end"

    run_async(play())


def test_a_cancelled_opening_leaves_nothing_open(server: ServerProcess) -> None:
    async def play() -> None:
        async with connect(server.url) as client, listener() as far:
            opening = asyncio.ensure_future(client.ports.open(HERE, far.port))
            await far.accepted.get()  # it is open at the server
            opening.cancel()
            with suppress(asyncio.CancelledError):
                await (await opening).aclose()
            await until_equal(lambda: streams_of(client), ())

    run_async(play())


def test_refusals_say_why(server: ServerProcess) -> None:
    async def play() -> None:
        async with connect(server.url) as client:
            with pytest.raises(
                InvalidRequestError, match=r"loopback addresses only \(--allow-forward loopback\)"
            ):
                await client.ports.open("192.0.2.1", 80)
            with pytest.raises(InvalidRequestError, match="loopback addresses only"):
                await client.ports.listen(host="0.0.0.0")
            with pytest.raises(InvalidRequestError, match="sandbox does not allow the network"):
                await client.ports.open(HERE, 80, sandbox="read-only")
            async with listener() as far:
                port = far.port
            with pytest.raises(InternalError, match=r"Connection refused \(os error 111\)"):
                await client.ports.open(HERE, port)

    run_async(play())


def test_a_server_that_does_not_forward(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        async with connect(server.url) as client:
            monkeypatch.setattr(type(client.session), "extensions", Extensions())
            with pytest.raises(UnsupportedByServer):
                await client.ports.open(HERE, 1)
            with pytest.raises(UnsupportedByServer):
                await client.ports.list()

    run_async(play())


def test_the_end_of_the_session_ends_streams_and_listeners(server: ServerProcess) -> None:
    async def play() -> None:
        async with listener() as far:
            async with connect(server.url) as client:
                stream = await client.ports.open(HERE, far.port)
                listening = await client.ports.listen()
            with pytest.raises(TransportClosed):
                await stream.read()
            with pytest.raises(TransportClosed):
                await stream.write(b"x")
            assert await listening.accept() is None
            await stream.aclose()
            await listening.aclose()

    run_async(play())


def test_a_server_that_sends_beyond_its_window_loses_the_stream(server: ServerProcess) -> None:
    async def play() -> None:
        async with connect(server.url) as client, listener() as far:
            stream = await client.ports.open(HERE, far.port)
            piece = b"x" * MIB
            for number in range(5):
                client.ports._ends.on_data(
                    PortDataNotification(
                        port_id=stream._end.log.port_id, offset=number * MIB, chunk=piece, eof=False
                    )
                )
            assert [await stream.read() for _ in range(4)] == [piece] * 4
            with pytest.raises(TransportClosed, match="sent more than its window allows"):
                await stream.read()
            await until_equal(lambda: streams_of(client), ())

    run_async(play())


def test_a_server_that_invents_connections_breaks_the_contract(server: ServerProcess) -> None:
    async def play() -> None:
        async with connect(server.url) as client:
            peer = PortAddress(host=HERE, port=1)

            def invent(number: int) -> None:
                client.ports._ends.on_accepted(
                    PortAcceptedNotification(listen_id="l", port_id=f"{number}", peer=peer, window_bytes=1)
                )

            for number in range(1024):
                invent(number)
            with pytest.raises(ProtocolViolation, match="more connections than it may"):
                invent(1024)

    run_async(play())


def test_a_port_of_this_machine_leads_through_the_box(server: ServerProcess) -> None:
    async def play() -> None:
        data = os.urandom(MIB)
        async with connect(server.url) as client, listener() as far:
            async with client.ports.forward(0, HERE, far.port) as forward:
                reader, writer = await asyncio.open_connection(*forward.address)
                far_reader, far_writer = await far.accepted.get()
                writer.write(data)
                writer.write_eof()
                assert await far_reader.read() == data
                far_writer.write(data)
                far_writer.write_eof()
                assert await reader.read() == data
                await ended(writer)
                await until_equal(lambda: streams_of(client), ())
                left_reader, left = await asyncio.open_connection(*forward.address)
                await far.accepted.get()
            assert await left_reader.read() == b""  # closing ends what is open
            await ended(left)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*forward.address)

    run_async(play())


def test_a_forward_ends_with_its_client(server: ServerProcess) -> None:
    async def play() -> None:
        async with listener() as far:
            async with connect(server.url) as client:
                forward = await client.ports.forward(0, HERE, far.port)
                reader, writer = await asyncio.open_connection(*forward.address)
                await far.accepted.get()
            assert await reader.read() == b""
            await ended(writer)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*forward.address)

    run_async(play())


def test_a_full_body_holds_up_no_stream_that_its_reader_waits_for(server: ServerProcess) -> None:
    async def play() -> None:
        async with connect(server.url) as client, listener() as web, listener() as far:
            fetching = asyncio.ensure_future(client.http.stream("GET", f"http://{HERE}:{web.port}/"))
            reader, writer = await web.accepted.get()
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + bytes(2_500_000))
            async with await fetching as body, client.ports.open(HERE, far.port) as stream:
                await anext(body)
                await until(client.http._gate.must_stop)  # the body is full, and read by this task
                _, far_writer = await far.accepted.get()
                far_writer.write(b"here")
                assert await stream.read() == b"here"

    run_async(play())


def test_a_forward_that_leads_nowhere_tells_why(server: ServerProcess) -> None:
    async def play() -> None:
        async with connect(server.url) as client, client.ports.forward(0, "192.0.2.1", 80) as forward:
            reader, writer = await asyncio.open_connection(*forward.address)
            assert await reader.read() == b""
            assert isinstance(forward.last_error, InvalidRequestError)
            await ended(writer)

    run_async(play())
