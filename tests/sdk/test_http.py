"""HTTP requests of the server's machine with the asyncio client, to a server of this test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from execserver.client.errors import InternalError, InvalidParamsError, TransportClosed
from execserver.protocol.http import HttpRequestBodyDeltaNotification
from execserver_client.http import HttpFailed
from tests.sdk.cutting import cutting
from tests.sdk.parts import connect
from tests.sdk.settling import until
from tests.sdk.support import run_async
from tests.support.server_process import ServerProcess

MIB = 1024 * 1024
PIECE = bytes(range(256)) * 256
ENDLESS = 256 * MIB


class Web:
    """Answers by path, and counts the bytes that it could send."""

    def __init__(self) -> None:
        self.url = ""
        self.sent = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            path = head.split(" ")[1]
            if path == "/echo":
                length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
                body = await reader.readexactly(length)
                writer.write(
                    b"HTTP/1.1 201 Created\r\nX-Two: a\r\nX-Two: b\r\nConnection: close\r\n\r\n" + body
                )
            elif path == "/cut":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
            elif path != "/silent":
                size = ENDLESS if path == "/endless" else 48 * len(PIECE)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % size)
                for _ in range(size // len(PIECE)):
                    writer.write(PIECE)
                    await writer.drain()
                    self.sent += len(PIECE)
            else:
                await reader.read()
            await writer.drain()
        writer.close()


@asynccontextmanager
async def web() -> AsyncIterator[Web]:
    here = Web()
    server = await asyncio.start_server(here.serve, "127.0.0.1", 0)
    here.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield here
    finally:
        server.close()


def test_a_whole_answer(server: ServerProcess) -> None:
    async def play() -> None:
        async with connect(server.url) as client, web() as here:
            answer = await client.http.request("POST", f"{here.url}/echo", headers={"X-A": "v"}, body=b"data")
            assert (answer.status, answer.body) == (201, b"data")
            assert answer.header("X-TWO") == "a"
            assert [header.value for header in answer.headers if header.name == "x-two"] == ["a", "b"]

    run_async(play())


def test_bodies_in_pieces_at_the_same_time(server: ServerProcess) -> None:
    async def play() -> None:
        async with connect(server.url) as client, web() as here:

            async def fetch() -> bytes:
                async with client.http.stream("GET", f"{here.url}/big") as response:
                    assert response.status == 200
                    assert response.header("content-length") == str(48 * len(PIECE))
                    return b"".join([piece async for piece in response])

            assert list(await asyncio.gather(fetch(), fetch(), fetch())) == [PIECE * 48] * 3

    run_async(play())


def test_failures_say_why(server: ServerProcess) -> None:
    async def play() -> None:
        async with connect(server.url) as client, web() as here:
            with pytest.raises(InvalidParamsError):
                await client.http.request("GET", "gopher://host/")
            with pytest.raises(InternalError):
                await client.http.request("GET", "http://127.0.0.1:1/")
            with pytest.raises(InternalError):
                await client.http.request("GET", f"{here.url}/silent", timeout=0.05)
            async with client.http.stream("GET", f"{here.url}/cut") as response:
                with pytest.raises(HttpFailed):
                    await response.read()

    run_async(play())


def test_a_slow_reader_stops_the_server_and_goes_on(server: ServerProcess) -> None:
    async def play() -> None:
        async with connect(server.url) as client, web() as here:
            async with client.http.stream("GET", f"{here.url}/endless") as response:
                total = len(await anext(response))
                await until(client.http._gate.must_stop)
                assert here.sent < ENDLESS
                async for piece in response:
                    total += len(piece)
                    if total > 32 * MIB:
                        break
            assert await client.http.request("GET", f"{here.url}/big")  # a closed one holds nothing up

    run_async(play())


def test_a_lost_connection_ends_streams_and_the_next_one_has_others(server: ServerProcess) -> None:
    async def play() -> None:
        with cutting(server.url) as proxy:
            async with connect(proxy.url) as client, web() as here:
                response = await client.http.stream("GET", f"{here.url}/endless")
                await anext(response)
                proxy.cut()
                with pytest.raises(TransportClosed):
                    await response.read()
                async with client.http.stream("GET", f"{here.url}/big") as again:
                    assert await again.read() == PIECE * 48

    run_async(play())


def test_a_cancelled_request_leaves_no_stream(server: ServerProcess) -> None:
    async def play() -> None:
        async with connect(server.url) as client, web() as here:
            opening = asyncio.ensure_future(client.http.stream("GET", f"{here.url}/silent"))
            streams = client.http._router.streams
            await until(lambda: bool(streams))
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            assert streams == {}

    run_async(play())


def test_a_missing_piece_ends_the_body(server: ServerProcess) -> None:
    async def play() -> None:
        async with (
            connect(server.url) as client,
            web() as here,
            client.http.stream("GET", f"{here.url}/endless") as response,
        ):
            await anext(response)
            response._body.deliver(
                HttpRequestBodyDeltaNotification(request_id="", seq=10**6, delta_base64=b"x", done=False)
            )
            with pytest.raises(HttpFailed, match="of the body is missing"):
                await response.read()

    run_async(play())
