"""One forwarded TCP connection as a client knows it: bytes in order, windows, offsets.  Without I/O.

Both sides count bytes from the beginning, so a stream goes on over a lost connection to the server: each
tells the other how many it has, and nothing is taken or written twice.  At most 4 MiB wait to be read, far
beyond the server's own window; a stream that gets more is at fault and fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from execserver.client.errors import ExecServerError, TransportClosed, kept
from execserver.client.rules import wire
from execserver.protocol.ports import PortAddress, PortDataNotification, PortDataParams
from execserver.wire.pieces import append

_WINDOW: Final = 256 * 1024  # until the server has said how large it is
_MOST_AT_ONCE: Final = 224 * 1024
_MOST_UNREAD: Final = 4 * 1024 * 1024


class PortLog:
    """Both directions of one stream; `address` is that of the far end, `arrived` counts what has come."""

    __slots__ = (
        *("address", "arrived", "error", "port_id"),
        *("_acknowledged", "_eof", "_ready", "_sent", "_taken", "_unsettled", "_window"),
    )

    def __init__(self, port_id: str) -> None:
        self.port_id = port_id
        self.address = PortAddress(host="", port=0)
        self.error: ExecServerError | None = None
        self.arrived = 0  # bytes from the socket, taken or not
        self._ready: deque[bytes] = deque()
        self._taken = 0
        self._acknowledged = 0
        self._sent = 0
        self._eof = False
        self._unsettled: deque[PortDataParams] = deque()
        self._window = _WINDOW

    def begin(self, address: PortAddress, window_bytes: int, sent: int = 0) -> None:
        """Note where the far end is, and how many bytes may be on their way in each direction.

        `sent` bytes have come with the request to connect.
        """
        self.address = address
        self._sent = sent
        self._window = window_bytes

    @property
    def piece_bytes(self) -> int:
        """How many bytes to send at once, so that some pieces fit the window."""
        return max(1, min(self._window // 4, _MOST_AT_ONCE))

    @property
    def window_bytes(self) -> int:
        """How many bytes the server lets be on their way."""
        return self._window

    @property
    def has_bytes(self) -> bool:
        """Whether `take` would return some."""
        return bool(self._ready)

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes from the far end."""
        return self._eof or self.error is not None

    def take(self) -> bytes | None:
        """Return the next bytes, empty ones at the end, None if nothing is ready.

        Raises what `fail` was called with.
        """
        if self._ready:
            data = self._ready.popleft()
            self._taken += len(data)
            return data
        if self._eof:
            return b""
        if self.error is not None:
            raise kept(self.error)
        return None

    def pass_by(self, use: Callable[[bytes], int]) -> bool:
        """Have what is ready used up; `use` returns how many bytes it has taken.

        Returns True if there is nothing left for `take`, which would return None.
        """
        while self._ready:
            data = self._ready[0]
            used = use(data)
            self._taken += used
            if used < len(data):
                self._ready[0] = data[used:]
                return False
            self._ready.popleft()
        return not self._eof and self.error is None

    def due(self) -> int | None:
        """Return how many bytes to acknowledge, None while the server need not hear of them yet."""
        # Not less: an answer for each piece would cost more than the piece.
        if self._taken - self._acknowledged < self._window // 2:
            return None
        self._acknowledged = self._taken
        return self._taken

    def pieces(self, data: bytes, *, eof: bool = False) -> Iterator[PortDataParams]:
        """Yield what to send, in order; `settle` follows for each.  Raises what `fail` was called with."""
        wire.check_bytes(data)
        size = self.piece_bytes
        last = max(0, (len(data) - 1) // size * size)
        for start in range(0, len(data) or int(eof), size):
            yield self.piece(data[start : start + size], eof=eof and start == last)

    def piece(self, data: bytes, *, eof: bool = False) -> PortDataParams:
        """Return one of at most `piece_bytes`, as `pieces` does; `settle` or `take_back` follows."""
        self._check()
        params = PortDataParams(port_id=self.port_id, offset=self._sent, chunk=data, eof=eof)
        self._unsettled.append(params)
        self._sent += len(data)
        return params

    def take_back(self) -> None:
        """Forget the newest piece, of which nothing was sent."""
        self._sent -= len(self._unsettled.pop().chunk)

    def given_up(self) -> Iterator[PortDataParams]:
        """Yield what an earlier caller did not wait for, to be sent before all else, as `pieces` does.

        The server ignores what it has, and takes nothing behind a hole.
        """
        for params in tuple(self._unsettled):
            self._check()
            yield params

    def settle(self) -> int:
        """Note that the server has answered the oldest piece; return how many bytes it had."""
        return len(self._unsettled.popleft().chunk)

    def add(self, note: PortDataNotification) -> bool:
        """Take bytes in order; what comes twice, or too early after a lost connection, is left out.

        Returns False if the stream has failed by it: its owner closes it at the server.
        """
        if note.offset != self.arrived or self.error is not None:
            return True
        if self.arrived - self._taken + len(note.chunk) > _MOST_UNREAD:
            self.fail(TransportClosed("the server sent more than its window allows"))
            return False
        if note.chunk:
            append(self._ready, note.chunk)
            self.arrived += len(note.chunk)
        self._eof = self._eof or note.eof
        return True

    def fail(self, error: ExecServerError) -> None:
        """End both directions with an error; what has come can still be read."""
        if self.error is None:
            self.error = kept(error)

    def _check(self) -> None:
        if self.error is not None:
            raise kept(self.error)
