"""The executor: signs in, registers, stays connected, and serves every harness that the registry lets in.

It runs until it is closed or a fatal error (`RemoteError`).  Sessions and processes survive the loss of the
WebSocket, which is opened again as often as necessary; the keys are made once and kept in memory only.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Mapping
from typing import NoReturn

import gevent

from execserver.log import active_redactor
from execserver.remote.addresses import (
    check_api_key_host,
    check_chatgpt_url,
    check_secure,
    checked_base_url,
    checked_environment_id,
)
from execserver.remote.auth.kinds import Auth
from execserver.remote.auth.resolve import resolve_auth
from execserver.remote.auth.stdin_credentials import CHATGPT, EXECUTOR
from execserver.remote.backoff import Backoff, registration_pause
from execserver.remote.config import RemoteEnvironmentConfig, find_codex_home, read_config
from execserver.remote.connecting import RendezvousConnector
from execserver.remote.errors import one_line
from execserver.remote.http import ApiClient, registry_environment
from execserver.remote.registry import NotNow, Registration, RegistryClient
from execserver.remote.rendezvous import ConnectFailed, RendezvousSocket, Timing, UpgradeRefused, shown
from execserver.remote.streams import Serve, StreamTable
from execserver.wire.noise_keys import StaticKeys

_log = logging.getLogger(__name__)

_SHUTDOWN_NOTICE_S = 0.5
ACKNOWLEDGED_RECORDS_VARIABLE = "EXECSERVER_ACKNOWLEDGED_RECORDS"
"""With 1, harnesses that speak upstream's unmerged form of relay records are answered alike."""


class Tools:
    """What the executor needs from outside: variables, time and waiting; tests bring their own."""

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        sleep: Callable[[float], object] = gevent.sleep,
        backoff: Backoff | None = None,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        credential: Callable[[], Auth] | None = None,
    ) -> None:
        """`credential` waits for the one that stdin gives, where the configuration says so."""
        self.environ = dict(os.environ if environ is None else environ)
        self.sleep = sleep
        self.backoff = backoff or Backoff()
        self.timing = timing or Timing()
        self.clock = clock
        self.chance = chance
        self.credential = credential


class RemoteExecutor:
    """One environment; `serve` starts a connection over a new stream."""

    def __init__(self, config: RemoteEnvironmentConfig, serve: Serve, tools: Tools | None = None) -> None:
        self._config = config
        self._serve = serve
        self._tools = tools or Tools()
        self._connector = RendezvousConnector(self._tools.environ)
        self._client = ApiClient(registry_environment(self._tools.environ), keeps=True)
        self._streams: StreamTable | None = None
        self._socket: RendezvousSocket | None = None
        self._is_leaving = False

    def run(self) -> None:
        """Serve for ever.  Raises RemoteError when that cannot go on."""
        try:
            self._run()
        finally:
            self._client.close()

    def _run(self) -> NoReturn:
        registry, environment_id = self._prepare()
        keys = StaticKeys.generate()
        registration = self._register(registry, keys)
        numbered = self._tools.environ.get(ACKNOWLEDGED_RECORDS_VARIABLE) == "1"
        self._streams = StreamTable(
            *(keys, registration, registry.validate, self._serve, self._tools.clock), numbered=numbered
        )
        _log.info("serving environment %s as %r", environment_id, self._config.name)
        while True:
            try:
                self._connect_and_serve(self._streams)
            except UpgradeRefused as refused:
                # 4xx means that the address is no longer valid; the same key gets a new one.
                reason = str(refused)
                if 400 <= refused.status < 500:
                    _log.warning("%s; registering again", refused)
                    self._streams.registration = self._register(registry, keys)
            except ConnectFailed as failed:
                reason = f"cannot connect to {shown(self._streams.registration.url)}: {failed}"
            else:
                reason = self._socket.ended_because if self._socket is not None else ""
            pause = self._tools.backoff.next_pause()
            if not self._is_leaving:
                _log.warning("%s; reconnecting in %.1f s", one_line(reason), pause)
            self._tools.sleep(pause)

    def close(self) -> None:
        """End all streams in order and close the WebSocket; the caller then kills what runs `run`."""
        self._is_leaving = True
        if self._streams is None or self._socket is None:
            return
        self._streams.close()
        deadline = self._tools.clock() + _SHUTDOWN_NOTICE_S
        while self._streams.count and self._tools.clock() < deadline:
            gevent.sleep(0.01)
        self._socket.close()

    def _prepare(self) -> tuple[RegistryClient, str]:
        """Check all that can be checked without asking the registry, in the contract's order."""
        config, environ = self._config, self._tools.environ
        if config.stdin_credential is not None and self._tools.credential is not None:
            return self._prepare_with(config.stdin_credential, self._tools.credential)
        codex_home = find_codex_home(environ)
        settings = read_config(codex_home, config.config_overrides)
        auth = resolve_auth(environ, codex_home, settings, config.use_agent_identity_auth)
        active_redactor().add(auth.secrets)
        _log.info("signing in with %s", auth.described)
        if auth.is_api_key:
            check_api_key_host(config.base_url, config.api_key_host)
        environment_id = checked_environment_id(config.environment_id)
        base_url = checked_base_url(config.base_url)
        return RegistryClient(base_url, environment_id, auth.headers, self._client), environment_id

    def _prepare_with(self, kind: str, credential: Callable[[], Auth]) -> tuple[RegistryClient, str]:
        """Prepare with a credential from stdin, which goes nowhere without TLS."""
        find_codex_home(self._tools.environ)
        environment_id = checked_environment_id(self._config.environment_id)
        base_url = checked_base_url(self._config.base_url)
        check_chatgpt_url(base_url) if kind == CHATGPT else check_secure(base_url)
        auth = credential()
        active_redactor().add(auth.secrets)
        _log.info("signing in with %s", auth.described)
        shows_bodies = kind != EXECUTOR
        registry = RegistryClient(base_url, environment_id, auth.headers, self._client, shows_bodies)
        return registry, environment_id

    def _register(self, registry: RegistryClient, keys: StaticKeys) -> Registration:
        attempt = 0
        while True:
            try:
                registration = registry.register(keys.public)
            except NotNow as error:
                pause = registration_pause(attempt, self._tools.chance)
                _log.warning("%s; registering again in %.1f s", one_line(error.text), pause)
                self._tools.sleep(pause)
                attempt += 1
                continue
            if self._config.stdin_credential is not None:
                check_secure(registration.url, "wss")
            _log.info(
                "registered as environment %s (registration %s)",
                registration.environment_id,
                one_line(registration.registration_id),
            )
            return registration

    def _connect_and_serve(self, streams: StreamTable) -> None:
        """Serve one WebSocket to its end.  Raises ConnectFailed if there is none."""
        url = streams.registration.url
        connected = RendezvousSocket.connect(url, timing=self._tools.timing, connector=self._connector)
        self._socket = connected
        began = self._tools.clock()
        _log.info("connected to %s; waiting for a harness", shown(url))
        streams.attach(connected.writer)
        was_used = False
        try:
            while (message := connected.receive()) is not None:
                was_used = streams.take(message) or was_used
        finally:
            streams.detach()
            connected.close()
        self._tools.backoff.ended(self._tools.clock() - began, was_used=was_used)
