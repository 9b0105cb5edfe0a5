"""Remote mode as the server runs it: an executor whose streams are connections like all others."""

from __future__ import annotations

from collections.abc import Callable

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


class RemoteServing(Running):
    """Runs the kind of executor that the configuration names; `make_call` makes a connection's context."""

    def __init__(
        self, beginning: Beginning, settings: Settings, make_call: Callable[[StreamOutbox], Call]
    ) -> None:
        self._make_call = make_call
        config, tools = beginning.config, beginning.tools
        super().__init__(
            RemoteExecutor(config, self._serve_stream, tools, beginning.registering)
            if isinstance(config, RemoteEnvironmentConfig)
            else PlainExecutor(config, self._serve_plain, settings, tools)
        )

    def _serve_stream(self, transport: RelayTransport) -> None:
        transport.start(connection_over(transport, self._make_call(transport.outbox)))

    def _serve_plain(self, transport: PlainTransport) -> Connection:
        return connection_over(transport, self._make_call(transport.outbox))
