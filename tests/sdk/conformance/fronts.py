"""The clients of the same contract, each behind the same few blocking calls, so that scenes fit all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import gevent

from execserver.box import address
from execserver.client import ExecServerClient, RemoteExecServerConnectArgs, RemoteProcess
from execserver.client.rules.event_log import Output
from execserver.protocol.batches import FsWriteEntry
from execserver_client._routes import find, route_to
from execserver_client.box import Box
from execserver_client.options import ConnectOptions
from execserver_client.ports import PortStream
from execserver_client.process import Process
from execserver_client.sync._portal import Portal
from execserver_client.sync.box import Box as BlockingBox
from execserver_client.sync.process import Process as BlockingProcess
from tests.sdk.conformance.connections import (
    AsyncioConnection,
    BlockingConnection,
    Connection,
    GeventConnection,
)
from tests.sdk.conformance.places import Place
from tests.support.leaks import snapshot
from tests.support.waiting import wait_until

T = TypeVar("T")
WAIT_S = 30.0
CWD = "/tmp"


class Done(NamedTuple):
    """How a command ended."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Running(Protocol):
    """A process that was started."""

    def write(self, data: bytes) -> None:
        """Write to its stdin."""

    def close_stdin(self) -> None:
        """End its stdin."""

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of its terminal."""

    def signal(self, name: str) -> None:
        """Send it a signal."""

    def terminate(self) -> bool:
        """Kill it; return whether it ran."""

    def piece(self) -> bytes | None:
        """Return the next output, None at the end."""

    def wait(self) -> int:
        """Return its exit code."""


class Front(Protocol):
    """A session of one client."""

    def run(self, argv: Sequence[str], input: bytes) -> Done:
        """Run a command to its end."""

    def start(self, argv: Sequence[str], *, tty: bool = False, pipe_stdin: bool = False) -> Running:
        """Start a process."""

    def write_file(self, path: str, data: bytes) -> None:
        """Write a whole file."""

    def read_file(self, path: str) -> bytes:
        """Read a whole file."""

    def write_parts(self, folder: str, entries: Sequence[FsWriteEntry]) -> None:
        """Write pieces of a file."""

    def read_blocks(self, path: str) -> list[bytes]:
        """Read a file block by block."""

    def names(self, path: str) -> list[str]:
        """List a folder."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def connection(self, port: int, first: bytes) -> Connection:
        """Connect from the box to one of its ports, with the first bytes along with that."""

    def resumptions(self) -> int:
        """Return how often the session was resumed."""

    def close(self) -> None:
        """End the session."""


class GeventFront:
    """`execserver.client.ExecServerClient`."""

    def __init__(self, place: Place) -> None:
        self._before, self._place = snapshot(), place
        where = address.parse(place.box)
        if isinstance(where, address.Relay):
            args = RemoteExecServerConnectArgs(
                url=where.url, environment_id=where.environment_id, token=place.token or ""
            )
            self._client = ExecServerClient.connect_remote(args)
        else:
            self._client = ExecServerClient.connect(place.box)

    def run(self, argv: Sequence[str], input: bytes) -> Done:
        """See `Front`."""
        with gevent.Timeout(WAIT_S):
            process = self._client.start(argv, cwd=CWD, pipe_stdin=True)
            return Done(*process.communicate(input)[:3])

    def start(self, argv: Sequence[str], *, tty: bool = False, pipe_stdin: bool = False) -> Running:
        """See `Front`."""
        return StreamRunning(self._client.start(argv, cwd=CWD, tty=tty, pipe_stdin=pipe_stdin))

    def write_file(self, path: str, data: bytes) -> None:
        """See `Front`."""
        self._client.write_file(path, data)

    def read_file(self, path: str) -> bytes:
        """See `Front`."""
        return self._client.read_file(path)

    def write_parts(self, folder: str, entries: Sequence[FsWriteEntry]) -> None:
        """See `Front`."""
        self._client.files.write_parts(folder, entries)

    def read_blocks(self, path: str) -> list[bytes]:
        """See `Front`."""
        with self._client.open_file(path) as file:
            return list(file)

    def names(self, path: str) -> list[str]:
        """See `Front`."""
        return sorted(entry.file_name for entry in self._client.read_directory(path))

    def remove(self, path: str) -> None:
        """See `Front`."""
        self._client.remove(path)

    def connection(self, port: int, first: bytes) -> Connection:
        """See `Front`."""
        return GeventConnection(self._client.ports.open("127.0.0.1", port, first=first))

    def resumptions(self) -> int:
        """See `Front`."""
        return self._client.resumptions

    def close(self) -> None:
        """See `Front`; what the hub does later is waited for, since nothing else runs it."""
        self._client.close()
        self._place.cut()  # what the proxy still carries
        try:
            wait_until(lambda: not snapshot().leaked_since(self._before), 10.0, pause=gevent.sleep)
        except AssertionError:
            pass  # the fixture for all tests reports what is left


class StreamRunning:
    """A process whose methods block already, of the gevent client or the blocking twin."""

    def __init__(self, process: RemoteProcess | BlockingProcess) -> None:
        self._process = process
        self.write = process.write
        self.close_stdin = process.close_stdin
        self.resize = process.resize
        self.signal = process.signal
        self.terminate = process.terminate

    def piece(self) -> bytes | None:
        """See `Running`."""
        while (event := self._process.next_event(WAIT_S)) is not None:
            if isinstance(event, Output):
                return event.data
        return None

    def wait(self) -> int:
        """See `Running`."""
        return self._process.wait(WAIT_S)


def box_at(place: Place) -> Box:
    """Return a box at a place, which is not open yet."""
    route = route_to(find(place.box, place.token, None, {}), ConnectOptions())
    return Box(route.open_transport, route.options, can_resume=route.can_resume, pauses=route.pauses)


class AsyncioFront:
    """`execserver_client.Box`, in an event loop of a thread of its own."""

    def __init__(self, place: Place) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._box = self.do(box_at(place).open())
        except BaseException:
            self._end_loop()
            raise
        self._files = self._box.files

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def run(self, argv: Sequence[str], input: bytes) -> Done:
        """See `Front`."""
        result = self.do(self._box.run(argv, input=input, cwd=CWD))
        return Done(result.exit_code, result.stdout, result.stderr)

    def start(self, argv: Sequence[str], *, tty: bool = False, pipe_stdin: bool = False) -> Running:
        """See `Front`."""
        process = self.do(self._box.start(argv, cwd=CWD, tty=tty, pipe_stdin=pipe_stdin))
        return AsyncioRunning(self, process)

    def write_file(self, path: str, data: bytes) -> None:
        """See `Front`."""
        self.do(self._files.write(path, data))

    def read_file(self, path: str) -> bytes:
        """See `Front`."""
        return self.do(self._files.read(path))

    def write_parts(self, folder: str, entries: Sequence[FsWriteEntry]) -> None:
        """See `Front`."""
        self.do(self._files.write_parts(folder, entries))

    def read_blocks(self, path: str) -> list[bytes]:
        """See `Front`."""

        async def blocks() -> list[bytes]:
            async with self._files.open(path) as file:
                return [block async for block in file]

        return self.do(blocks())

    def names(self, path: str) -> list[str]:
        """See `Front`."""
        return sorted(entry.file_name for entry in self.do(self._files.list(path)))

    def remove(self, path: str) -> None:
        """See `Front`."""
        self.do(self._files.remove(path))

    def connection(self, port: int, first: bytes) -> Connection:
        """See `Front`."""

        async def opened() -> PortStream:
            return await self._box.ports.open("127.0.0.1", port, first=first)

        return AsyncioConnection(self.do, self.do(opened()))

    def resumptions(self) -> int:
        """See `Front`."""
        return self._box.resumptions

    def close(self) -> None:
        """See `Front`."""
        try:
            self.do(self._box.aclose())
        finally:
            self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()


class AsyncioRunning:
    """`execserver_client.Process`."""

    def __init__(self, front: AsyncioFront, process: Process) -> None:
        self._front = front
        self._process = process

    def write(self, data: bytes) -> None:
        """See `Running`."""
        self._front.do(self._process.write(data))

    def close_stdin(self) -> None:
        """See `Running`."""
        self._front.do(self._process.close_stdin())

    def resize(self, rows: int, cols: int) -> None:
        """See `Running`."""
        self._front.do(self._process.resize(rows, cols))

    def signal(self, name: str) -> None:
        """See `Running`."""
        self._front.do(self._process.signal(name))

    def terminate(self) -> bool:
        """See `Running`."""
        return self._front.do(self._process.terminate())

    def piece(self) -> bytes | None:
        """See `Running`."""
        while (event := self._front.do(self._process.next_event(WAIT_S))) is not None:
            if isinstance(event, Output):
                return event.data
        return None

    def wait(self) -> int:
        """See `Running`."""
        return self._front.do(self._process.wait(WAIT_S))


class BlockingFront:
    """`execserver_client.sync.Box`."""

    def __init__(self, place: Place) -> None:
        portal = Portal()
        self._box = BlockingBox(portal, portal.call(box_at(place).open))
        self._files = self._box.files

    def run(self, argv: Sequence[str], input: bytes) -> Done:
        """See `Front`."""
        result = self._box.run(argv, input=input, cwd=CWD)
        return Done(result.exit_code, result.stdout, result.stderr)

    def start(self, argv: Sequence[str], *, tty: bool = False, pipe_stdin: bool = False) -> Running:
        """See `Front`."""
        return StreamRunning(self._box.start(argv, cwd=CWD, tty=tty, pipe_stdin=pipe_stdin))

    def write_file(self, path: str, data: bytes) -> None:
        """See `Front`."""
        self._files.write(path, data)

    def read_file(self, path: str) -> bytes:
        """See `Front`."""
        return self._files.read(path)

    def write_parts(self, folder: str, entries: Sequence[FsWriteEntry]) -> None:
        """See `Front`."""
        self._files.write_parts(folder, entries)

    def read_blocks(self, path: str) -> list[bytes]:
        """See `Front`."""
        with self._files.open(path) as file:
            return list(file)

    def names(self, path: str) -> list[str]:
        """See `Front`."""
        return sorted(entry.file_name for entry in self._files.list(path))

    def remove(self, path: str) -> None:
        """See `Front`."""
        self._files.remove(path)

    def connection(self, port: int, first: bytes) -> Connection:
        """See `Front`."""
        return BlockingConnection(self._box.ports.open("127.0.0.1", port, first=first))

    def resumptions(self) -> int:
        """See `Front`."""
        return self._box.resumptions

    def close(self) -> None:
        """See `Front`."""
        self._box.close()


FRONTS: dict[str, Callable[[Place], Front]] = {
    "gevent": GeventFront,
    "asyncio": AsyncioFront,
    "blocking": BlockingFront,
}
