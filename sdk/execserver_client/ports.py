"""TCP connections from and to the server's machine, as streams.

A stream goes on over a lost connection to the server: both sides know how many bytes the other one has.  A
reader that is slow stops the sender at the far end, at most 1 MiB ahead; a writer goes on when the server's
kernel has taken what it was given.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

import msgspec

from execserver.client.errors import WaitTimeout
from execserver.client.greenlets.router import Router
from execserver.client.operations import ports as asking
from execserver.protocol.paths import PathUri
from execserver.protocol.ports import PortAddress, PortListResponse, PortOpenParams
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver_client._driving import adrive
from execserver_client._errands import Errands
from execserver_client._flow import Gate
from execserver_client._forwards import LocalForward, listen_here
from execserver_client._opening import Opening
from execserver_client._port_ends import ListenerEnd, PortEnds, StreamEnd
from execserver_client._session import Session
from execserver_client.sandbox import AnySandbox, context_of

__all__ = ["LocalForward", "PortListener", "PortStream", "Ports"]

_LOOPBACK: Final = "127.0.0.1"


class PortStream:
    """One connection; it may be read and written at the same time."""

    def __init__(self, end: StreamEnd) -> None:
        """Use `Ports.open` or `Ports.listen` instead."""
        self._end = end

    @property
    def address(self) -> PortAddress:
        """The address of the far end."""
        return self._end.log.address

    @property
    def arrived(self) -> int:
        """How many bytes have come, read or not."""
        return self._end.log.arrived

    async def read(self) -> bytes:
        """Return the next bytes, empty ones at the end.  Raises `TransportClosed` if it ended badly."""
        return await self._end.take()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        data = await self._end.take()
        if not data:
            raise StopAsyncIteration
        return data

    async def write(self, data: bytes) -> None:
        """Write all of it; return when the server's kernel has it.

        If it is cancelled a beginning of the data has been written, and what is written next follows that.
        Raises as `read`, and `RequestFailed`.
        """
        await self._end.send(data)

    async def write_all(self, pieces: Iterable[bytes] | AsyncIterable[bytes]) -> None:
        """Write pieces one behind the other, and do not wait for the answer to each.

        Up to the server's window of them are on their way before the first is answered.  Otherwise as
        `write`.
        """
        await self._end.send_all(pieces)

    async def write_eof(self) -> None:
        """Tell the other side that nothing more comes; reading goes on."""
        await self._end.send(b"", eof=True)

    async def aclose(self) -> None:
        """End the connection.  May be called again."""
        await self._end.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class PortListener:
    """A port that the server listens on: an asynchronous iterator over the connections to it."""

    def __init__(self, end: ListenerEnd) -> None:
        """Use `Ports.listen` instead."""
        self._end = end

    @property
    def address(self) -> PortAddress:
        """Where the server listens."""
        return self._end.address

    async def accept(self, timeout: float | None = None) -> PortStream | None:
        """Return the next connection, which the caller closes; None when the listener is closed.

        Raises `WaitTimeout` after `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                end = await self._end.take()
        except TimeoutError:
            raise WaitTimeout(f"nobody has connected for {timeout:g} s") from None
        return None if end is None else PortStream(end)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PortStream:
        stream = await self.accept()
        if stream is None:
            raise StopAsyncIteration
        return stream

    async def aclose(self) -> None:
        """Listen no longer; accepted streams go on, connections that nobody took are closed."""
        await self._end.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Ports:
    """`box.ports`: methods raise `RequestFailed`, or `UnsupportedByServer` where no ports are forwarded.

    A `sandbox` that does not allow the network refuses.
    """

    def __init__(self, session: Session, gate: Gate, router: Router, errands: Errands) -> None:
        """Follow what the server tells about ports; use `Box.ports` instead."""
        self._session = session
        self._errands = errands
        self._ends = PortEnds(session, gate, errands)
        router.follow_ports(self._ends)

    def open(
        self, host: str, port: int, *, sandbox: AnySandbox = None, first: bytes = b""
    ) -> Opening[PortStream]:
        """Connect from the server's machine to an address.

        `first` bytes go there with the request to connect, which saves a round trip.

        ```python
        async with box.ports.open("localhost", 5432, first=b"hello") as stream:
            print(await stream.read())
        ```
        """
        return Opening(self._open(asking.place(uuid4().hex, host, port, _context(sandbox)), first))

    def listen(
        self, port: int = 0, *, host: str = _LOOPBACK, sandbox: AnySandbox = None
    ) -> Opening[PortListener]:
        """Listen on the server's machine; port 0 takes a free one, `address` of the result says which.

        ```python
        async with box.ports.listen(8080) as listener:
            async for stream in listener:
                ...
        ```
        """
        return Opening(self._listen(asking.place(uuid4().hex, host, port, _context(sandbox))))

    async def list(self) -> PortListResponse:
        """Return who listens on the machine, and the streams of this session."""
        return await adrive(self._session, asking.listing(self._session.extensions))

    def forward(
        self,
        local_port: int,
        host: str,
        port: int,
        *,
        local_host: str = _LOOPBACK,
        sandbox: AnySandbox = None,
    ) -> Opening[LocalForward]:
        """Listen here, and pass each connection on to an address that the server's machine reaches.

        Local port 0 takes a free one.  Raises OSError where this cannot listen.
        """
        return Opening(self._forward(local_host, local_port, asking.place("", host, port, _context(sandbox))))

    async def _open(self, params: PortOpenParams, first: bytes) -> PortStream:
        return PortStream(await self._ends.connect(params, first))

    async def _listen(self, params: PortOpenParams) -> PortListener:
        return PortListener(await self._ends.listen(params))

    async def _forward(self, host: str, port: int, place: PortOpenParams) -> LocalForward:
        async def connect(first: bytes) -> StreamEnd:
            return await self._ends.connect(msgspec.structs.replace(place, port_id=uuid4().hex), first)

        made = listen_here(host, port, connect)
        self._errands.own(made)
        return made


def _context(sandbox: AnySandbox) -> FileSystemSandboxContext | None:
    return context_of(sandbox, PathUri.from_native(b"/"))
