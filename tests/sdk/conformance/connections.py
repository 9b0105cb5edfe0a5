"""A forwarded connection of each client behind the same few blocking calls."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from execserver.client.ports import PortStream
from execserver_client.ports import PortStream as AsyncioStream
from execserver_client.sync.ports import PortStream as BlockingStream


class Connection(Protocol):
    """Both directions of it."""

    def write(self, data: bytes) -> None:
        """Write all of it."""

    def write_eof(self) -> None:
        """Write no more."""

    def read(self) -> bytes:
        """Return the next bytes, empty ones at the end."""

    def close(self) -> None:
        """End it."""


class GeventConnection:
    """`execserver.client.ports.PortStream`."""

    def __init__(self, stream: PortStream) -> None:
        self.write = stream.send
        self.write_eof = stream.shutdown
        self.read = stream.recv
        self.close = stream.close


class AsyncioConnection:
    """`execserver_client.PortStream`; `do` carries coroutines out."""

    def __init__(self, do: Callable[[Coroutine[Any, Any, Any]], Any], stream: AsyncioStream) -> None:
        self._do = do
        self._stream = stream

    def write(self, data: bytes) -> None:
        """See `Connection`."""
        self._do(self._stream.write(data))

    def write_eof(self) -> None:
        """See `Connection`."""
        self._do(self._stream.write_eof())

    def read(self) -> bytes:
        """See `Connection`."""
        data: bytes = self._do(self._stream.read())
        return data

    def close(self) -> None:
        """See `Connection`."""
        self._do(self._stream.aclose())


class BlockingConnection:
    """`execserver_client.sync.PortStream`."""

    def __init__(self, stream: BlockingStream) -> None:
        self.write = stream.write
        self.write_eof = stream.write_eof
        self.read = stream.read
        self.close = stream.close
