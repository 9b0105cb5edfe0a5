"""This end of forwarded connections: what `PortTable` hands notifications to, and what callers wait at."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any, TypeVar

from execserver.client.errors import ExecServerError, TransportClosed
from execserver.client.operations import ports as asking
from execserver.client.operations.call import Operation
from execserver.client.rules.port_log import PortLog
from execserver.client.rules.port_table import PortTable
from execserver.protocol.ports import PortAddress, PortDataNotification, PortOpenParams
from execserver_client._driving import adrive
from execserver_client._errands import Errands
from execserver_client._flow import Gate
from execserver_client._session import Session

T = TypeVar("T")


class StreamEnd:
    """One connection."""

    def __init__(self, ends: PortEnds, port_id: str) -> None:
        self.log = PortLog(port_id)
        self._ends = ends
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._owed: int | None = None  # what the server is to hear of

    async def take(self) -> bytes:
        """Return the next bytes, empty ones at the end.  Raises what ended the stream."""
        while (data := self.log.take()) is None:
            self._changed.clear()
            with self._ends.gate.waiting():
                await self._changed.wait()
        if (received := self.log.due()) is not None:
            self._owed, idle = received, self._owed is None
            if idle:
                self._ends.errands.begin(self._acknowledge)
        return data

    async def send(self, data: bytes, *, eof: bool = False) -> None:
        """Write all of it."""
        async with self._writing:
            await self._ends.carry_out(asking.send(self.log, data, eof=eof))

    async def send_all(
        self, pieces: Iterable[bytes] | AsyncIterable[bytes], refused: Callable[[], object] | None = None
    ) -> None:
        """Write pieces one behind the other.

        `refused` is called when a piece is refused: this may be waiting for the next one then, and only meets
        the error behind that.
        """
        async with self._writing:
            await self._ends.send_all(self.log, pieces, refused)

    async def close(self) -> None:
        """End both directions, here and at the server."""
        self.fail(TransportClosed("this stream was closed"))
        await self._ends.close(self.log.port_id)

    def deliver(self, note: PortDataNotification) -> None:
        """Take bytes in order; what comes twice, or too early after a lost connection, is left out."""
        if not self.log.add(note):
            self._ends.drop(self.log.port_id)
        self._changed.set()

    def fail(self, error: ExecServerError) -> None:
        """End both directions with an error; what has come can still be read."""
        self.log.fail(error)
        self._changed.set()

    async def resume(self) -> None:
        """Go on, on a new connection to the server."""
        error = await self._ends.carry_out(asking.resume(self.log))
        if error is not None:
            self.fail(error)

    async def _acknowledge(self) -> None:
        # One request at a time, however fast the reader and however slow the answers.
        while (received := self._owed) is not None:
            await self._ends.carry_out(asking.acknowledge(self.log.port_id, received))
            if self._owed == received:
                self._owed = None


class ListenerEnd:
    """A port that the server listens on, and the connections to it that nobody has taken."""

    def __init__(self, ends: PortEnds, port_id: str) -> None:
        self.address = PortAddress(host="", port=0)
        self._port_id = port_id
        self._ends = ends
        self._accepted: deque[StreamEnd] = deque()
        self._over = False
        self._changed = asyncio.Event()

    async def take(self) -> StreamEnd | None:
        """Return the next connection; None when the listener is closed."""
        while not (self._accepted or self._over):
            self._changed.clear()
            with self._ends.gate.waiting():
                await self._changed.wait()
        return self._accepted.popleft() if self._accepted else None

    async def close(self) -> None:
        """Listen no longer, and close what nobody took."""
        self.end()
        untaken = list(self._accepted)
        self._accepted.clear()
        await asyncio.gather(self._ends.close(self._port_id), *(stream.close() for stream in untaken))

    def offer(self, stream: StreamEnd) -> None:
        """Let `take` return a connection."""
        self._accepted.append(stream)
        self._changed.set()

    def waiting(self) -> int:
        """Return how many connections nobody has taken yet."""
        return len(self._accepted)

    def end(self) -> None:
        """Let `take` return None behind what has come."""
        self._over = True
        self._changed.set()


class PortEnds(PortTable[StreamEnd]):
    """The forwarded ports of one session."""

    def __init__(self, session: Session, gate: Gate, errands: Errands) -> None:
        super().__init__()
        self.gate = gate
        self.errands = errands
        self._session = session
        self._dropping = 0

    async def connect(self, params: PortOpenParams, first: bytes = b"") -> StreamEnd:
        """Connect from the server; `first` bytes go along with it, and those it has not taken behind it."""
        extensions = self._session.extensions
        asking.require(extensions)
        # Before the request: the first bytes may come before its answer.
        stream = self._streams[params.port_id] = StreamEnd(self, params.port_id)
        rest = await self._opened(params.port_id, asking.connect(params, stream.log, first, extensions))
        try:
            if rest:
                await stream.send(rest)
        except BaseException:
            await stream.close()
            raise
        return stream

    async def listen(self, params: PortOpenParams) -> ListenerEnd:
        """Listen on the server's machine."""
        extensions = self._session.extensions
        asking.require(extensions)
        listener = self._listeners[params.port_id] = ListenerEnd(self, params.port_id)
        listener.address = await self._opened(params.port_id, asking.listen(params, extensions))
        return listener

    async def send_all(
        self,
        log: PortLog,
        pieces: Iterable[bytes] | AsyncIterable[bytes],
        refused: Callable[[], object] | None = None,
    ) -> None:
        """Send pieces of a stream."""
        from execserver_client._pipelining import send_all  # late: few programs send much

        await send_all(self._session, log, pieces, refused)

    async def carry_out(self, operation: Operation[T]) -> T:
        """Carry out what a stream asks."""
        return await adrive(self._session, operation)

    async def close(self, port_id: str) -> None:
        """End a stream or a listener, if it is open; also if the caller is cancelled."""
        if self._forget(port_id):
            await self.errands.finish(self._close, port_id)

    def drop(self, port_id: str) -> None:
        """See `PortTable`."""
        self.check_dropping(self._dropping)
        self._forget(port_id)
        self._dropping += 1
        self.errands.begin(self._drop, port_id)

    def made(self, port_id: str, peer: PortAddress, window_bytes: int) -> StreamEnd:
        """Return a new stream of a connection that somebody made."""
        stream = StreamEnd(self, port_id)
        stream.log.begin(peer, window_bytes)
        return stream

    def on_resumed(self) -> None:
        """Go on with every stream on a new connection."""
        for stream in self._streams.values():
            self.errands.begin(stream.resume)

    async def _opened(self, port_id: str, opening: Operation[T]) -> T:
        try:
            return await self.errands.opened(lambda: self.carry_out(opening), lambda: self._close(port_id))
        except BaseException:
            self._forget(port_id)
            raise

    def _forget(self, port_id: str) -> bool:
        known: tuple[Any, Any] = self._streams.pop(port_id, None), self._listeners.pop(port_id, None)
        return known != (None, None)

    async def _drop(self, port_id: str) -> None:
        try:
            await self._close(port_id)
        finally:
            self._dropping -= 1

    async def _close(self, port_id: str) -> None:
        await self.carry_out(asking.close(port_id))
