"""Remote mode as the server runs it: an executor whose streams are connections like all others."""

from __future__ import annotations

from collections.abc import Callable

from gevent import GreenletExit, spawn

from execserver.handlers.context import Call
from execserver.remote.config import RemoteEnvironmentConfig, RemoteExecutorConfig
from execserver.remote.errors import RemoteError
from execserver.remote.executor import RemoteExecutor, Tools
from execserver.remote.outbox import StreamOutbox
from execserver.remote.plain_executor import PlainExecutor
from execserver.remote.plain_transport import PlainTransport
from execserver.remote.relay_transport import RelayTransport
from execserver.settings import Settings
from execserver.transports.connection import Connection


class RemoteServing:
    """Runs the kind of executor that the configuration names; `make_call` makes a connection's context."""

    def __init__(
        self,
        config: RemoteEnvironmentConfig | RemoteExecutorConfig,
        settings: Settings,
        make_call: Callable[[StreamOutbox], Call],
        tools: Tools | None = None,
    ) -> None:
        self._make_call = make_call
        self._executor: RemoteExecutor | PlainExecutor = (
            RemoteExecutor(config, self._serve_stream, tools)
            if isinstance(config, RemoteEnvironmentConfig)
            else PlainExecutor(config, self._serve_plain, settings, tools)
        )
        self.failure: RemoteError | None = None

    def run(self, ended: Callable[[], object]) -> None:
        """Serve until killed or until a fatal error, which `failure` then holds."""
        # Stays if `run` ends in any other way than those below.
        self.failure = RemoteError("remote mode ended by a mistake of this program")
        try:
            self._executor.run()
        except RemoteError as error:
            self.failure = error
        except GreenletExit:
            self.failure = None
        finally:
            ended()

    def close(self) -> None:
        """End all streams in order."""
        self._executor.close()

    def _serve_stream(self, transport: RelayTransport) -> None:
        connection = Connection(transport, self._make_call(transport.outbox))
        transport.start(connection)
        spawn(connection.run)

    def _serve_plain(self, transport: PlainTransport) -> Connection:
        connection = Connection(transport, self._make_call(transport.outbox))
        spawn(connection.run)
        return connection
