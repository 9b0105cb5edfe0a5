"""The blocking twin of `execserver_client.ports`; `build.py docs` writes it from there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from execserver.protocol.ports import PortAddress, PortListResponse
from execserver_client import ports as asynchronous
from execserver_client.ports import _LOOPBACK
from execserver_client.sandbox import AnySandbox
from execserver_client.sync import _shapes as shapes
from execserver_client.sync._forwards import LocalForward
from execserver_client.sync._portal import Portal


class PortStream:
    """One connection; it may be read and written at the same time."""

    def __init__(self, portal: Portal, wrapped: asynchronous.PortStream) -> None:
        self._portal = portal
        self._wrapped = wrapped

    @property
    def address(self) -> PortAddress:
        """The address of the far end."""
        return self._wrapped.address

    @property
    def arrived(self) -> int:
        """How many bytes have come, read or not."""
        return self._wrapped.arrived

    def read(self) -> bytes:
        """Return the next bytes, empty ones at the end.  Raises `TransportClosed` if it ended badly."""
        return self._portal.call(self._wrapped.read)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        for item in self._portal.call(shapes.step, self._wrapped):
            return item
        raise StopIteration

    def write(self, data: bytes) -> None:
        """Write all of it; return when the server's kernel has it.

        If it is cancelled a beginning of the data has been written, and what is written next follows that.
        Raises as `read`, and `RequestFailed`.
        """
        self._portal.call(self._wrapped.write, data)

    def write_all(self, pieces: Iterable[bytes]) -> None:
        """Write pieces one behind the other, and do not wait for the answer to each.

        Up to the server's window of them are on their way before the first is answered.  Otherwise as
        `write`.
        """
        self._portal.call(self._wrapped.write_all, shapes.feed(pieces))

    def write_eof(self) -> None:
        """Tell the other side that nothing more comes; reading goes on."""
        self._portal.call(self._wrapped.write_eof)

    def close(self) -> None:
        """End the connection.  May be called again."""
        self._portal.call(self._wrapped.aclose)

    def __enter__(self) -> Self:
        self._portal.call(self._wrapped.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._portal.call(self._wrapped.__aexit__, *error)


class PortListener:
    """A port that the server listens on: an iterator over the connections to it."""

    def __init__(self, portal: Portal, wrapped: asynchronous.PortListener) -> None:
        self._portal = portal
        self._wrapped = wrapped

    @property
    def address(self) -> PortAddress:
        """Where the server listens."""
        return self._wrapped.address

    def accept(self, timeout: float | None = None) -> PortStream | None:
        """Return the next connection, which the caller closes; None when the listener is closed.

        Raises `WaitTimeout` after `timeout` seconds.
        """
        found = self._portal.call(self._wrapped.accept, timeout)
        return None if found is None else PortStream(self._portal, found)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PortStream:
        for item in self._portal.call(shapes.step, self._wrapped):
            return PortStream(self._portal, item)
        raise StopIteration

    def close(self) -> None:
        """Listen no longer; accepted streams go on, connections that nobody took are closed."""
        self._portal.call(self._wrapped.aclose)

    def __enter__(self) -> Self:
        self._portal.call(self._wrapped.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._portal.call(self._wrapped.__aexit__, *error)


class Ports:
    """`box.ports`: methods raise `RequestFailed`, or `UnsupportedByServer` where no ports are forwarded.

    A `sandbox` that does not allow the network refuses.
    """

    def __init__(self, portal: Portal, wrapped: asynchronous.Ports) -> None:
        self._portal = portal
        self._wrapped = wrapped

    def open(self, host: str, port: int, *, sandbox: AnySandbox = None, first: bytes = b"") -> PortStream:
        """Connect from the server's machine to an address.

        `first` bytes go there with the request to connect, which saves a round trip.

        ```python
        with box.ports.open("localhost", 5432, first=b"hello") as stream:
            print(stream.read())
        ```
        """
        found = self._portal.call(
            shapes.settle,
            lambda: self._wrapped.open(host, port, sandbox=sandbox, first=first),
        )
        return PortStream(self._portal, found)

    def listen(self, port: int = 0, *, host: str = _LOOPBACK, sandbox: AnySandbox = None) -> PortListener:
        """Listen on the server's machine; port 0 takes a free one, `address` of the result says which.

        ```python
        with box.ports.listen(8080) as listener:
            for stream in listener:
                ...
        ```
        """
        found = self._portal.call(
            shapes.settle,
            lambda: self._wrapped.listen(port, host=host, sandbox=sandbox),
        )
        return PortListener(self._portal, found)

    def list(self) -> PortListResponse:
        """Return who listens on the machine, and the streams of this session."""
        return self._portal.call(self._wrapped.list)

    def forward(
        self,
        local_port: int,
        host: str,
        port: int,
        *,
        local_host: str = _LOOPBACK,
        sandbox: AnySandbox = None,
    ) -> LocalForward:
        """Listen here, and pass each connection on to an address that the server's machine reaches.

        Local port 0 takes a free one.  Raises OSError where this cannot listen.
        """
        found = self._portal.call(
            shapes.settle,
            lambda: self._wrapped.forward(local_port, host, port, local_host=local_host, sandbox=sandbox),
        )
        return LocalForward(self._portal, found)
