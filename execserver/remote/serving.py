"""Remote mode as the server runs it: an executor whose streams are connections like all others.

The program that takes the server's place opens a WebSocket of its own and tells the harnesses that their
streams are over; they resume their sessions.  Until the exec all of them go on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from execserver.handlers.context import Call
from execserver.remote.beginning import Beginning
from execserver.remote.config import RemoteEnvironmentConfig
from execserver.remote.executor import RemoteExecutor
from execserver.remote.outbox import StreamOutbox
from execserver.remote.plain_executor import PlainExecutor
from execserver.remote.plain_transport import PlainTransport
from execserver.remote.relay_transport import RelayTransport
from execserver.remote.running import Running
from execserver.settings import Settings
from execserver.transports.connection import Connection, connection_over
from execserver.transports.open_connections import OpenConnections

if TYPE_CHECKING:
    from execserver.handover.carrier import Outgoing
    from execserver.handover.records import PackedRemote


class RemoteServing(Running):
    """Runs the kind of executor that the configuration names; `make_call` makes a connection's context."""

    def __init__(
        self, beginning: Beginning, settings: Settings, make_call: Callable[[StreamOutbox], Call]
    ) -> None:
        self._make_call = make_call
        self._beginning = beginning
        self.open: OpenConnections[RelayTransport] = OpenConnections()
        self._executor: RemoteExecutor | PlainExecutor
        config, tools = beginning.config, beginning.tools
        if isinstance(config, RemoteEnvironmentConfig):
            self._executor = RemoteExecutor(
                config, self._serve_stream, tools, beginning.registering, beginning.former
            )
        else:
            self._executor = PlainExecutor(config, self._serve_plain, settings, tools)
        super().__init__(self._executor)

    @property
    def may_be_handed_over(self) -> bool:
        """False in the older form: it registers before each connection, and ends where it may not."""
        return isinstance(self._executor, RemoteExecutor)

    def pack(self, out: Outgoing) -> PackedRemote:
        """Return what `beginning.begin` goes on from."""
        assert isinstance(self._executor, RemoteExecutor)
        return self._beginning.pack(self._executor.stream_ids, out)

    def _serve_stream(self, transport: RelayTransport) -> Callable[[], None]:
        call = self._make_call(transport.outbox)
        connection = connection_over(transport, call, partial(self.open.discard, transport))
        transport.deliver_to(connection)
        return partial(self.open.add, transport, connection)

    def _serve_plain(self, transport: PlainTransport) -> Connection:
        return connection_over(transport, self._make_call(transport.outbox))
