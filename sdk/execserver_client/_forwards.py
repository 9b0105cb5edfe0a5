"""A port of this machine that leads to an address which the server's machine reaches.

At most 256 connections at a time; further ones wait in the kernel.  A connection holds at most the server's
window each way; what is not read stops its sender.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Final, Self

from execserver.client.errors import ExecServerError, RequestFailed, kept
from execserver_client._port_ends import StreamEnd
from execserver_client._tasks import Tasks

_AT_ONCE: Final = 256
_PIECE: Final = 192 * 1024
_FIRST_BYTES: Final = 16 * 1024
_BACKLOG: Final = 64
_NO_LINGER: Final = struct.pack("ii", 1, 0)
_PAUSE_S: Final = 0.25  # before this looks again whether the system has a descriptor for a connection


Connect = Callable[[bytes], Awaitable[StreamEnd]]  # with the first bytes for the far end


class LocalForward:
    """A listener of this machine; `address` is where it listens.

    `last_error` says why the newest connection that could not be made failed; who had connected here sees
    the connection end.  One whose bytes the box refuses later ends by a reset.
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
        await _Passage(sock, stream).run()

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


class _Passage:
    """A connection and its stream; owns both in `run`."""

    def __init__(self, sock: socket.socket, stream: StreamEnd) -> None:
        self._sock = sock
        self._stream = stream
        self._running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Pass bytes both ways until both have ended, or one has broken."""
        self._running = asyncio.current_task()
        loop = asyncio.get_running_loop()
        up = loop.create_task(self._send())
        try:
            while data := await self._stream.take():
                await loop.sock_sendall(self._sock, data)
            self._sock.shutdown(socket.SHUT_WR)
            await up
        except (OSError, ExecServerError):
            pass  # either side is gone: the other one is told by the end
        finally:
            self._running = None
            up.cancel()
            await asyncio.gather(up, return_exceptions=True)
            self._sock.close()  # first: the box may take its time
            await self._stream.close()

    async def _send(self) -> None:
        try:
            await self._stream.send_all(self._received(), self._refused)
            await self._stream.send(b"", eof=True)
        except (OSError, ExecServerError) as error:
            if isinstance(error, RequestFailed):
                self._refused()
            await self._stream.close()

    async def _received(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self._sock, _PIECE):
            yield data

    def _refused(self) -> None:
        """End both sides since the box has refused what came from here.

        By a reset, since an end would say that all has arrived.  If it was told before that the stream has
        failed or ended, that is why, and what it has sent until then is to be read here.
        """
        if self._running is None or self._stream.log.is_over:
            return
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        running, self._running = self._running, None
        running.cancel()
