"""The beginning of remote mode: stdin is taken and the registry asked before the rest is loaded.

Registering takes a round trip to the registry or several, and loading what serves as long as a tenth of a
second.  So the first begins here, with few imports, and goes on while `load` imports the others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import gevent
from gevent.event import Event

from execserver.eventloop.input_end import InputEnd
from execserver.log import active_redactor
from execserver.name_services import use_built_in_ones
from execserver.remote.addresses import check_chatgpt_url, checked_base_url, checked_environment_id
from execserver.remote.auth.resolve import CREDENTIALS
from execserver.remote.auth.stdin_credentials import (
    BEARER,
    EXECUTOR,
    ChatGptToken,
    ExecutorCredential,
    RegistrationBearer,
    StdinCredential,
)
from execserver.remote.config import RemoteEnvironmentConfig, RemoteExecutorConfig
from execserver.remote.errors import ConfigurationError, SignInError
from execserver.remote.registering import Registering
from execserver.remote.stdin_input import CredentialInput, is_pipe_or_socket
from execserver.remote.tools import Tools

if TYPE_CHECKING:
    from execserver.handover.carrier import Outgoing
    from execserver.handover.records import PackedRemote

_STDIN = 0
_NOTHING = memoryview(b"")


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
    packed: PackedRemote | None = None,
) -> tuple[CredentialInput | InputEnd | None, Tools]:
    """Return what reads stdin, if anything does, and the tools, which wait for a credential that comes there.

    `leave` is called when the program is to end for what stdin says; `packed` is what a program before this
    one has read there, and what it had in its environment.  Raises RemoteError.
    """
    credential = stdin_credential(config)
    environ = os.environ if packed is None else {**os.environ, **packed.variables}
    if credential is not None:
        if packed is not None and packed.stdin is not None:
            credential.restore(packed.stdin)
        reader = CredentialInput(_STDIN, credential, leave, ends_with_stdin=ends_with_stdin)
        return reader, Tools(environ, credential=reader.wait)
    return (InputEnd(_STDIN, leave) if ends_with_stdin else None), Tools(environ)


def _learn(secret: str) -> None:
    active_redactor().add((secret,))


class Beginning(NamedTuple):
    """What has begun; `stop` is set when the program is to end, and `stdin` reads stdin, if anything does.

    `former` are the ids of streams of a program before this one.
    """

    config: RemoteEnvironmentConfig | RemoteExecutorConfig
    tools: Tools
    stop: Event
    stdin: CredentialInput | InputEnd | None
    registering: Registering | None
    former: Sequence[str] = ()

    def pack(self, stream_ids: list[str], out: Outgoing) -> PackedRemote:
        """Return what `begin` goes on from; all streams end."""
        from execserver.handover.records import PackedRemote  # late, as all of that package: few hand over

        assert self.registering is not None
        environ = self.tools.environ
        return PackedRemote(
            variables={name: environ[name] for name in CREDENTIALS if name in environ},
            stdin=self.stdin.pack() if isinstance(self.stdin, CredentialInput) else None,
            registered=self.registering.pack(out),
            streams=stream_ids,
        )


def begin(
    config: RemoteEnvironmentConfig | RemoteExecutorConfig,
    ends_with_stdin: bool = False,
    packed: PackedRemote | None = None,
    beside: memoryview = _NOTHING,
) -> Beginning:
    """Take stdin, and begin to register an environment.  Raises RemoteError.

    Goes on from what is `packed`, with what went along `beside` the records: an environment that is
    registered is not registered again.
    """
    use_built_in_ones()  # before the registry's name is looked up
    stop = Event()
    stdin, tools = take_stdin(config, stop.set, ends_with_stdin, packed)
    registering = None
    if isinstance(config, RemoteEnvironmentConfig):
        registering = Registering(config, tools)
        if packed is None or packed.registered is None:
            registering.begin()
        else:
            registering.take_over(packed.registered, beside)
    former = () if packed is None else packed.streams
    return Beginning(config, tools, stop, stdin, registering, former)


def check_resuming(config: RemoteEnvironmentConfig | RemoteExecutorConfig) -> None:
    """Raise RemoteError unless `begin` goes on with a registration by this configuration."""
    if isinstance(config, RemoteExecutorConfig):
        raise ConfigurationError("an executor of the older form (--executor-id) cannot be upgraded in place")
    checked_environment_id(config.environment_id)
    checked_base_url(config.base_url)


def load(modules: Iterable[str]) -> None:
    """Import modules one after the other; before each, all greenlets go on with what has arrived for them."""
    for name in modules:
        gevent.idle()
        import_module(name)
