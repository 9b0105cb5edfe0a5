"""A port of this machine that leads to an address which the server's machine reaches.

At most 256 connections at a time; further ones wait in the kernel.  A connection holds at most the server's
window each way; what is not read stops its sender.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Final, Protocol, Self

from execserver.client.errors import ExecServerError, kept
from execserver_client._tasks import Tasks

_AT_ONCE: Final = 256
_PIECE: Final = 192 * 1024
_FIRST_BYTES: Final = 16 * 1024
_BACKLOG: Final = 64
_PAUSE_S: Final = 0.25  # before this looks again whether the system has a descriptor for a connection


class Stream(Protocol):
    """The far end of a connection: a `PortStream`."""

    async def read(self) -> bytes:
        """Return the next bytes, empty ones at the end."""

    async def write_all(self, pieces: AsyncIterable[bytes]) -> None:
        """Write all of them."""

    async def write_eof(self) -> None:
        """Tell the other side that nothing more comes."""

    async def aclose(self) -> None:
        """End it."""


Connect = Callable[[bytes], Awaitable[Stream]]  # with the first bytes for the far end


class LocalForward:
    """A listener of this machine; `address` is where it listens.

    `last_error` says why the newest connection that could not be made failed; who had connected here sees
    the connection end.
    """

    def __init__(self, sock: socket.socket, connect: Connect) -> None:
        """Use `Ports.forward` instead; this owns `sock`."""
        self.last_error: ExecServerError | None = None
        self.address: tuple[str, int] = sock.getsockname()[:2]
        self._sock = sock
        self._connect = connect
        self._tasks = Tasks()
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._tasks.spawn(self._accept()).add_done_callback(lambda _: sock.close())

    async def aclose(self) -> None:
        """Listen no longer and end the connections.  May be called again."""
        self._tasks.cancel()
        await self._tasks.settle()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()
            try:
                sock, _ = await loop.sock_accept(self._sock)
            except OSError:  # such as no descriptor left: this may pass
                self._room.release()
                await asyncio.sleep(_PAUSE_S)
                continue
            except BaseException:
                self._room.release()
                raise
            task = self._tasks.spawn(self._serve(sock))
            task.add_done_callback(partial(self._over, sock))  # also of one that never began

    async def _serve(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            stream = await self._connect(_come_already(sock))
        except ExecServerError as error:
            self.last_error = kept(error)
            return
        await _join(sock, stream)

    def _over(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        sock.close()
        self._room.release()


def listen_here(host: str, port: int, connect: Connect) -> LocalForward:
    """Listen on a numeric address.  Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    sock.setblocking(False)
    return LocalForward(sock, connect)


def _come_already(sock: socket.socket) -> bytes:
    """Return the first bytes of whoever has connected, if they are there: they go along with the opening."""
    try:
        return sock.recv(_FIRST_BYTES)
    except OSError:
        return b""  # nothing yet, or an error that the next read meets


async def _join(sock: socket.socket, stream: Stream) -> None:
    """Pass bytes both ways until both have ended, or one has broken."""
    up = asyncio.create_task(_send(sock, stream))
    try:
        loop = asyncio.get_running_loop()
        while data := await stream.read():
            await loop.sock_sendall(sock, data)
        sock.shutdown(socket.SHUT_WR)
        await up
    except (OSError, ExecServerError):
        pass  # either side is gone: the other one is told by the end
    finally:
        up.cancel()
        await asyncio.gather(up, return_exceptions=True)
        await stream.aclose()


async def _send(sock: socket.socket, stream: Stream) -> None:
    try:
        await stream.write_all(_received(sock))
        await stream.write_eof()
    except (OSError, ExecServerError):
        await stream.aclose()


async def _received(sock: socket.socket) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(sock, _PIECE):
        yield data
