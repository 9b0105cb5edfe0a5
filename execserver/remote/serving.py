"""Remote mode as the server runs it: an executor whose streams are connections like all others."""

from __future__ import annotations

import time
from collections.abc import Callable

from execserver.eventloop.input_end import InputEnd
from execserver.handlers.context import Call
from execserver.log import active_redactor
from execserver.remote.addresses import check_chatgpt_url
from execserver.remote.auth.stdin_credentials import (
    BEARER,
    EXECUTOR,
    ChatGptToken,
    ExecutorCredential,
    RegistrationBearer,
    StdinCredential,
)
from execserver.remote.config import RemoteEnvironmentConfig, RemoteExecutorConfig
from execserver.remote.errors import SignInError
from execserver.remote.executor import RemoteExecutor, Tools
from execserver.remote.outbox import StreamOutbox
from execserver.remote.plain_executor import PlainExecutor
from execserver.remote.plain_transport import PlainTransport
from execserver.remote.relay_transport import RelayTransport
from execserver.remote.running import Running
from execserver.remote.stdin_input import CredentialInput, is_pipe_or_socket
from execserver.settings import Settings
from execserver.transports.connection import Connection, connection_over

_STDIN = 0


def stdin_credential(config: RemoteEnvironmentConfig | RemoteExecutorConfig) -> StdinCredential | None:
    """Return what reads the credential that stdin gives, if the configuration wants one there.

    Raises RemoteError.
    """
    kind = config.stdin_credential if isinstance(config, RemoteEnvironmentConfig) else None
    if kind is None or not isinstance(config, RemoteEnvironmentConfig):
        return None
    if kind == BEARER:
        return RegistrationBearer()
    if kind == EXECUTOR:
        return ExecutorCredential(config.environment_id.strip(), time.time, _learn)
    check_chatgpt_url(config.base_url)
    if not is_pipe_or_socket(_STDIN):
        raise SignInError("ChatGPT token stdin must be a pipe or socket")
    return ChatGptToken(config.chatgpt_account_id)


def take_stdin(
    config: RemoteEnvironmentConfig | RemoteExecutorConfig,
    leave: Callable[[], object],
    ends_with_stdin: bool,
) -> tuple[CredentialInput | InputEnd | None, Tools | None]:
    """Return what reads stdin, if anything does, and the tools of an executor that gets its credential there.

    `leave` is called when the program is to end for what stdin says.  Raises RemoteError.
    """
    credential = stdin_credential(config)
    if credential is not None:
        reader = CredentialInput(_STDIN, credential, leave, ends_with_stdin=ends_with_stdin)
        return reader, Tools(credential=reader.wait)
    return (InputEnd(_STDIN, leave) if ends_with_stdin else None), None


def _learn(secret: str) -> None:
    active_redactor().add((secret,))


__all__ = ["CredentialInput", "RemoteServing", "take_stdin"]


class RemoteServing(Running):
    """Runs the kind of executor that the configuration names; `make_call` makes a connection's context."""

    def __init__(
        self,
        config: RemoteEnvironmentConfig | RemoteExecutorConfig,
        settings: Settings,
        make_call: Callable[[StreamOutbox], Call],
        tools: Tools | None = None,
    ) -> None:
        self._make_call = make_call
        super().__init__(
            RemoteExecutor(config, self._serve_stream, tools)
            if isinstance(config, RemoteEnvironmentConfig)
            else PlainExecutor(config, self._serve_plain, settings, tools)
        )

    def _serve_stream(self, transport: RelayTransport) -> None:
        transport.start(connection_over(transport, self._make_call(transport.outbox)))

    def _serve_plain(self, transport: PlainTransport) -> Connection:
        return connection_over(transport, self._make_call(transport.outbox))
