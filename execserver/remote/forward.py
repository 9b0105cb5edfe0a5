"""`exec-server forward`: an executor whose streams end at another exec-server's WebSocket.

Each stream gets a WebSocket of its own to the destination, opened once the harness has been let in.  Messages
pass unchanged in both directions and are looked at by nobody here: to the destination as binary ones, as the
reference sends them.  When the destination is lost or cannot be reached, that stream is reset and all others
go on; the end of a stream closes its WebSocket.

Bounds: the streams of one executor, `_HELD_BYTES` of messages on their way to a destination that does not
read (then the stream holds them back), the outbox towards the harness, the contract's length of a message.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from gevent import Greenlet, spawn
from gevent.event import Event

from execserver.eventloop.signals import on_end_signals
from execserver.remote.beginning import take_stdin
from execserver.remote.config import RemoteEnvironmentConfig
from execserver.remote.connecting import RendezvousConnector
from execserver.remote.executor import RemoteExecutor
from execserver.remote.relay_transport import RelayTransport
from execserver.remote.rendezvous import ConnectFailed, ConnectionEnded, Kind, RendezvousSocket
from execserver.remote.running import Running
from execserver.remote.stdin_input import CredentialInput
from execserver.remote.tools import Timing
from execserver.wire.close_codes import INVALID_DATA
from execserver.wire.noise_records import MAX_JSON_BYTES

_HELD_BYTES = 256 * 1024
_LAST_ANSWERS_S = 1.0
_TIMING = Timing(connect_s=10.0)
_DESTINATION = Kind(MAX_JSON_BYTES, is_text=True, sends_binary=True, peer="the destination", tells_id=False)

Connect = Callable[[], RendezvousSocket]


def forward(config: RemoteEnvironmentConfig, destination: str, ends_with_stdin: bool = False) -> int:
    """Be the executor of an environment until a signal; return the exit status.

    `destination` is a checked URL of another exec-server.  With `ends_with_stdin` the end of stdin ends this,
    too.  Raises RemoteError when it cannot go on.
    """
    stop = Event()
    on_end_signals(stop.set)
    stdin, tools = take_stdin(config, stop.set, ends_with_stdin)
    running = Running(RemoteExecutor(config, Forwarder(destination).serve, tools))
    worker = spawn(running.run, stop.set)
    stop.wait()
    if stdin is not None:
        stdin.close()
    running.close()
    worker.kill()
    if isinstance(stdin, CredentialInput) and stdin.failure is not None:
        raise stdin.failure
    if running.failure is not None:
        raise running.failure
    return 0


class Forwarder:
    """Connects streams with one destination, by the proxies and certificates of the environment."""

    def __init__(self, destination: str, environ: Mapping[str, str] | None = None) -> None:
        self._destination = destination
        self._connector = RendezvousConnector(os.environ if environ is None else environ)

    def serve(self, transport: RelayTransport) -> Callable[[], None]:
        """Take a new stream, and return what connects it once it begins; neither waits."""
        bridge = _Bridge(transport)
        transport.deliver_to(bridge)
        return partial(bridge.start, self._connect)

    def _connect(self) -> RendezvousSocket:
        return RendezvousSocket.connect(
            self._destination, timing=_TIMING, connector=self._connector, kind=_DESTINATION
        )


class _Bridge:
    """One stream and its WebSocket; the receiver of the stream's messages."""

    def __init__(self, transport: RelayTransport) -> None:
        self._transport = transport
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._arrived = Event()
        self._greenlet: Greenlet[[Connect], None] | None = None

    def start(self, connect: Connect) -> None:
        """Connect, and pass messages on until either side ends, in a greenlet of its own."""
        self._greenlet = spawn(self._run, connect)

    def receive(self, messages: list[bytes]) -> None:
        """Take messages for the destination; called in the event loop."""
        self._waiting += messages
        self._waiting_bytes += sum(map(len, messages))
        self._arrived.set()
        if self._waiting_bytes > _HELD_BYTES:
            self._transport.pause()

    def ended(self) -> None:
        """Take the end of the stream; called in the event loop, perhaps again."""
        greenlet, self._greenlet = self._greenlet, None
        if greenlet is not None:
            greenlet.kill(block=False)

    def _run(self, connect: Connect) -> None:
        try:
            reason = self._pass_on(connect())
        except ConnectFailed as failed:
            reason = f"no connection to the destination: {failed}"
        self._greenlet = None  # closing the stream reports its end to this bridge
        self._transport.outbox.wait_until_empty(_LAST_ANSWERS_S)
        self._transport.close(INVALID_DATA, reason)  # the code by which a stream is reset

    def _pass_on(self, destination: RendezvousSocket) -> str:
        """Pass messages on in both directions; return why the destination's side ended."""
        outbox = self._transport.outbox
        with _beside(self._send_all, destination):
            try:
                while (message := destination.receive()) is not None:
                    outbox.send(message)
                    if not outbox.wait_for_room():
                        break
            finally:
                destination.close()
        return destination.ended_because

    def _send_all(self, destination: RendezvousSocket) -> None:
        try:
            while self._arrived.wait():
                message = self._waiting.popleft()
                self._waiting_bytes -= len(message)
                destination.send(message)
                if not self._waiting:
                    self._arrived.clear()
                if self._waiting_bytes <= _HELD_BYTES // 2:
                    self._transport.resume()
        except ConnectionEnded:
            pass  # the greenlet that reads finds it, too


@contextmanager
def _beside(work: Callable[[RendezvousSocket], None], destination: RendezvousSocket) -> Iterator[None]:
    greenlet = spawn(work, destination)
    try:
        yield
    finally:
        greenlet.kill(block=False)
