"""The beginning of remote mode: stdin is taken and the registry asked before the rest is loaded.

Registering takes a round trip to the registry or several, and loading what serves as long as a tenth of a
second.  So the first begins here, with few imports, and goes on while `load` imports the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import NamedTuple

import gevent
from gevent.event import Event

from execserver.eventloop.input_end import InputEnd
from execserver.log import active_redactor
from execserver.name_services import use_built_in_ones
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
from execserver.remote.registering import Registering
from execserver.remote.stdin_input import CredentialInput, is_pipe_or_socket
from execserver.remote.tools import Tools

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
) -> tuple[CredentialInput | InputEnd | None, Tools]:
    """Return what reads stdin, if anything does, and the tools, which wait for a credential that comes there.

    `leave` is called when the program is to end for what stdin says.  Raises RemoteError.
    """
    credential = stdin_credential(config)
    if credential is not None:
        reader = CredentialInput(_STDIN, credential, leave, ends_with_stdin=ends_with_stdin)
        return reader, Tools(credential=reader.wait)
    return (InputEnd(_STDIN, leave) if ends_with_stdin else None), Tools()


def _learn(secret: str) -> None:
    active_redactor().add((secret,))


class Beginning(NamedTuple):
    """What has begun; `stop` is set when the program is to end, and `stdin` reads stdin, if anything does."""

    config: RemoteEnvironmentConfig | RemoteExecutorConfig
    tools: Tools
    stop: Event
    stdin: CredentialInput | InputEnd | None
    registering: Registering | None


def begin(config: RemoteEnvironmentConfig | RemoteExecutorConfig, ends_with_stdin: bool = False) -> Beginning:
    """Take stdin, and begin to register an environment.  Raises RemoteError."""
    use_built_in_ones()  # before the registry's name is looked up
    stop = Event()
    stdin, tools = take_stdin(config, stop.set, ends_with_stdin)
    registering = None
    if isinstance(config, RemoteEnvironmentConfig):
        registering = Registering(config, tools)
        registering.begin()
    return Beginning(config, tools, stop, stdin, registering)


def load(modules: Iterable[str]) -> None:
    """Import modules one after the other; before each, all greenlets go on with what has arrived for them."""
    for name in modules:
        gevent.idle()
        import_module(name)
