"""The executor by the contract of May 2026: one harness, plain messages on the registry's WebSocket.

It registers before every connection and ends at the first registration that fails.  Only the WebSocket's own
TLS encrypts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from execserver.log import active_redactor
from execserver.remote.addresses import checked_base_url, checked_environment_id
from execserver.remote.answers import CallFailed, registry_environment
from execserver.remote.config import RemoteExecutorConfig
from execserver.remote.connecting import RendezvousConnector
from execserver.remote.errors import RegistryError, SignInError, one_line
from execserver.remote.http import ApiClient
from execserver.remote.plain_transport import PlainTransport, plain_kind
from execserver.remote.registry import REGISTER_TIMEOUT_S
from execserver.remote.registry_answers import refusal
from execserver.remote.rendezvous import ConnectFailed, RendezvousSocket
from execserver.remote.rendezvous_urls import shown
from execserver.remote.tools import Tools
from execserver.settings import Settings
from execserver.transports.transport import Receiver

_log = logging.getLogger(__name__)

TOKEN_VARIABLE = "CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN"
_TOKEN_PROBLEM = (
    f"executor registry authentication error: executor registry bearer token environment variable "
    f"`{TOKEN_VARIABLE}` is "
)


class _Address(msgspec.Struct):
    executor_id: str
    url: str


class PlainExecutor:
    """One executor; `serve` starts a connection over a transport and returns the receiver of its messages."""

    def __init__(
        self,
        config: RemoteExecutorConfig,
        serve: Callable[[PlainTransport], Receiver],
        settings: Settings,
        tools: Tools | None = None,
    ) -> None:
        self._config = config
        self._serve = serve
        self._settings = settings
        self._tools = tools or Tools()
        self._client = ApiClient(registry_environment(self._tools.environ))
        self._connector = RendezvousConnector(self._tools.environ)
        self._socket: RendezvousSocket | None = None

    def run(self) -> None:
        """Serve for ever.  Raises RemoteError when that cannot go on."""
        token = self._token()
        executor_id = checked_environment_id(self._config.executor_id, "executor")
        base_url = checked_base_url(self._config.base_url, "executor")
        while True:
            registered = self._register(f"{base_url}/cloud/executor/{executor_id}/register", token)
            _log.info(
                "codex exec-server remote executor registered with executor_id %s", registered.executor_id
            )
            try:
                reason = self._connect_and_serve(registered.url)
            except ConnectFailed as failed:
                reason = f"cannot connect to {shown(registered.url)}: {failed}"
            pause = self._tools.backoff.next_pause()
            _log.warning("%s; registering again in %.1f s", one_line(reason), pause)
            self._tools.sleep(pause)

    def close(self) -> None:
        """Close the WebSocket, with a Close frame if the peer takes it at once."""
        if self._socket is not None:
            self._socket.close()

    def _token(self) -> str:
        token = self._tools.environ.get(TOKEN_VARIABLE)
        if token is None:
            raise SignInError(f"{_TOKEN_PROBLEM}not set")
        if not token.strip():
            raise SignInError(f"{_TOKEN_PROBLEM}empty")
        active_redactor().add([token.strip()])
        return token.strip()

    def _register(self, url: str, token: str) -> _Address:
        fields = [("authorization", f"Bearer {token}"), ("content-length", "0")]
        try:
            response = self._client.call("POST", url, fields, timeout_s=REGISTER_TIMEOUT_S)
        except CallFailed as failed:
            raise RegistryError(f"executor registry request failed: {failed.text}", failed.cause) from None
        if not response.is_success:
            raise refusal(response, "executor")
        try:
            return msgspec.json.decode(response.body, type=_Address)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            text = "executor registry request failed: error decoding response body"
            raise RegistryError(text, str(error)) from None

    def _connect_and_serve(self, url: str) -> str:
        """Serve one WebSocket to its end; return why it ended.  Raises ConnectFailed if there is none."""
        connected = RendezvousSocket.connect(
            url, timing=self._tools.timing, connector=self._connector, kind=plain_kind(self._settings)
        )
        self._socket = connected
        began = self._tools.clock()
        _log.info("connected to %s; waiting for a harness", shown(url))
        transport = PlainTransport(connected, shown(url))
        try:
            transport.run(self._serve(transport))
        finally:
            connected.close()
        self._tools.backoff.ended(self._tools.clock() - began, was_used=False)
        return connected.ended_because
