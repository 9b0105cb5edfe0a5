"""Registers an environment: signs in, makes the keys, asks the registry, and asks again where it says so.

Loads no more than that takes, so that an executor can ask while the rest of it is still loaded.  The keys are
made once, and kept in memory only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from gevent import Greenlet, spawn

from execserver.log import active_redactor
from execserver.remote.addresses import (
    check_api_key_host,
    check_chatgpt_url,
    check_secure,
    checked_base_url,
    checked_environment_id,
)
from execserver.remote.answers import registry_environment
from execserver.remote.auth.kinds import Auth
from execserver.remote.auth.resolve import resolve_auth
from execserver.remote.auth.stdin_credentials import CHATGPT, EXECUTOR
from execserver.remote.backoff import registration_pause
from execserver.remote.config import RemoteEnvironmentConfig, find_codex_home, read_config
from execserver.remote.errors import RemoteError, one_line
from execserver.remote.http import ApiClient
from execserver.remote.registry import RegistryClient
from execserver.remote.registry_answers import NotNow, Registration
from execserver.remote.tools import Tools
from execserver.wire.noise_keys import SEEDS_BYTES, X25519_BYTES, StaticKeys

if TYPE_CHECKING:
    from execserver.handover.carrier import Outgoing
    from execserver.handover.records import PackedRegistered

_log = logging.getLogger(__name__)


class Registered(NamedTuple):
    """An environment that the registry knows, with what asks the registry about it, and its keys."""

    environment_id: str
    registry: RegistryClient
    keys: StaticKeys
    registration: Registration


class Registering:
    """The registrations of one environment, one after another; owns the connections to the registry."""

    def __init__(self, config: RemoteEnvironmentConfig, tools: Tools) -> None:
        self._config = config
        self._tools = tools
        self._client = ApiClient(registry_environment(tools.environ), keeps=True)
        self._begun: Greenlet[[], None] | None = None
        self._registered: Registered | None = None
        self._auth: Auth | None = None
        self._failure: RemoteError | None = None

    def begin(self) -> None:
        """Register in a greenlet; `first` waits for it."""
        self._begun = spawn(self._run)

    def first(self) -> Registered:
        """Return the first registration.  Raises RemoteError."""
        if self._begun is not None:
            self._begun.join()
            failure, self._failure = self._failure, None
            if failure is not None:
                try:
                    raise failure
                finally:
                    del failure  # its traceback holds this frame
        elif self._registered is None:
            self._registered = self._first()
        if self._registered is None:  # what was wrong has been printed
            raise RemoteError("remote mode ended by a mistake of this program")
        return self._registered

    def again(self, before: Registered) -> Registration:
        """Register the same keys once more.  Raises RemoteError."""
        registration = self._ask(before.registry, before.keys)
        self._registered = before._replace(registration=registration)
        return registration

    def pack(self, out: Outgoing) -> PackedRegistered | None:
        """Return what `take_over` takes; None before the first registration."""
        from execserver.handover.records import PackedRegistered  # late: few hand over

        if self._registered is None or self._auth is None:
            return None
        keys_at = out.put([self._registered.keys.seeds()])
        return PackedRegistered(self._auth.pack_sign_in(), self._registered.registration, keys_at)

    def take_over(self, packed: PackedRegistered, beside: memoryview) -> None:
        """Go on with a registration of the program before this one, and ask nobody.

        `beside` is what went along beside the records.  Raises RemoteError.
        """
        auth = None
        if packed.sign_in is not None:
            from execserver.remote.auth.handed_over import unpacked

            auth = unpacked(packed.sign_in, self._tools.environ)
        registry, environment_id = self._prepare(auth)
        seeds = beside[packed.keys_at : packed.keys_at + SEEDS_BYTES]
        keys = StaticKeys.from_seeds(seeds[:X25519_BYTES], seeds[X25519_BYTES:])
        self._registered = Registered(environment_id, registry, keys, Registration(*packed.registration))

    def close(self) -> None:
        """Close the connections, and ask no more."""
        if self._begun is not None:
            self._begun.kill(block=False)
        self._client.close()

    def _run(self) -> None:
        try:
            self._registered = self._first()
        except RemoteError as error:
            self._failure = error.with_traceback(None)  # it holds this frame, which holds the error

    def _first(self) -> Registered:
        registry, environment_id = self._prepare(None)
        keys = StaticKeys.generate()
        return Registered(environment_id, registry, keys, self._ask(registry, keys))

    def _prepare(self, auth: Auth | None) -> tuple[RegistryClient, str]:
        """Check all that can be checked without asking the registry, in the contract's order.

        Signs in unless that was done.
        """
        config = self._config
        if config.stdin_credential is not None and self._tools.credential is not None:
            return self._prepare_with(config.stdin_credential, self._tools.credential)
        auth = self._auth = auth or self._signed_in()
        active_redactor().add(auth.secrets)
        _log.info("signing in with %s", auth.described)
        if auth.is_api_key:
            check_api_key_host(config.base_url, config.api_key_host)
        environment_id = checked_environment_id(config.environment_id)
        base_url = checked_base_url(config.base_url)
        registry = RegistryClient(
            *(base_url, environment_id, auth.headers, self._client), headers_may_wait=auth.may_wait
        )
        return registry, environment_id

    def _signed_in(self) -> Auth:
        environ = self._tools.environ
        codex_home = find_codex_home(environ)
        settings = read_config(codex_home, self._config.config_overrides)
        return resolve_auth(environ, codex_home, settings, self._config.use_agent_identity_auth)

    def _prepare_with(self, kind: str, credential: Callable[[], Auth]) -> tuple[RegistryClient, str]:
        """Prepare with a credential from stdin, which goes nowhere without TLS."""
        find_codex_home(self._tools.environ)
        environment_id = checked_environment_id(self._config.environment_id)
        base_url = checked_base_url(self._config.base_url)
        check_chatgpt_url(base_url) if kind == CHATGPT else check_secure(base_url)
        auth = self._auth = credential()
        active_redactor().add(auth.secrets)
        _log.info("signing in with %s", auth.described)
        registry = RegistryClient(
            *(base_url, environment_id, auth.headers, self._client),
            headers_may_wait=auth.may_wait,
            shows_bodies=kind != EXECUTOR,
        )
        return registry, environment_id

    def _ask(self, registry: RegistryClient, keys: StaticKeys) -> Registration:
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
