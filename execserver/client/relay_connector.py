"""How a harness connects to its executor: ask the registry, open a WebSocket to the rendezvous.

One dialer serves one client, and its keys live as long as it.  The executor's key is taken from the
registry's first answer and must stay the same, because a session exists in one executor process only.  Every
attempt asks the registry again, since its answer is valid for one attempt (wire contract, remote mode).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final
from zlib import crc32

import gevent
from cryptography.exceptions import UnsupportedAlgorithm

from execserver.client.errors import (
    ConnectFailed,
    ConnectTimeout,
    RegistryRefused,
    RemoteConfigurationError,
    RemoteModeUnavailable,
)
from execserver.client.options import ExecServerClientConnectOptions, RemoteExecServerConnectArgs
from execserver.remote import rendezvous
from execserver.remote.addresses import checked_base_url, checked_environment_id
from execserver.remote.connecting import RendezvousConnector
from execserver.remote.errors import ConfigurationError, RemoteError
from execserver.remote.http import ApiClient, CallFailed, Fields, Response, registry_environment
from execserver.remote.registry import Bundle, RegistryClient
from execserver.remote.rendezvous import RendezvousSocket
from execserver.remote.tools import Timing
from execserver.wire.noise_keys import StaticKeys

MAX_ABANDONED: Final = 8
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 5.0
JITTER: Final = 0.5
_UNAUTHORIZED: Final = 401
_NOT_FOUND: Final = 404
_TRANSIENT: Final = frozenset((408, 429))


class _WatchedClient(ApiClient):
    """Notes whether the last request failed in a way that may pass, and whether its answer was 404."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(environ)
        self.may_pass = False
        self.is_unknown = False

    def post(self, url: str, fields: Fields, body: object, *, timeout_s: float = 30.0) -> Response:
        """See `ApiClient.post`."""
        try:
            response = super().post(url, fields, body, timeout_s=timeout_s)
        except CallFailed as failed:
            self.may_pass = failed.is_transient
            self.is_unknown = False
            raise
        self.may_pass = response.status >= 500 or response.status in _TRANSIENT
        self.is_unknown = response.status == _NOT_FOUND
        return response


class RelayConnector:
    """Makes the connections of one client to one environment."""

    def __init__(self, args: RemoteExecServerConnectArgs, environ: Mapping[str, str] | None = None) -> None:
        """Check the arguments, make keys.  Raises `RemoteConfigurationError` or `RemoteModeUnavailable`."""
        try:
            base_url = checked_base_url(args.url)
            environment_id = checked_environment_id(args.environment_id)
        except ConfigurationError as error:
            raise RemoteConfigurationError(error.text) from error
        headers = [("authorization", f"Bearer {args.token}")]
        if args.account_id is not None:
            headers.append(("chatgpt-account-id", args.account_id))
        try:
            self.keys = StaticKeys.generate()
        except UnsupportedAlgorithm as error:
            raise RemoteModeUnavailable(
                f"this build of `cryptography` lacks an algorithm: {error}"
            ) from error
        self.abandoned: deque[str] = deque(maxlen=MAX_ABANDONED)
        self._options = args.options
        environ = registry_environment(os.environ if environ is None else environ)
        self._http = _WatchedClient(environ)
        self._connector = RendezvousConnector(environ)
        self._registry = RegistryClient(base_url, environment_id, lambda: headers, self._http)
        self._known: Bundle | None = None

    @property
    def options(self) -> ExecServerClientConnectOptions:
        """The options of the client."""
        return self._options

    def connect(self, timeout: float) -> tuple[Bundle, RendezvousSocket]:
        """Ask the registry and connect, within about `timeout` seconds.

        Raises `ConnectFailed` or `ConnectTimeout` for what may pass, `RegistryRefused` for a final refusal.
        """
        deadline = time.monotonic() + timeout
        with gevent.Timeout(timeout, ConnectTimeout(f"the relay did not answer within {timeout:g} s")):
            bundle = self._bundle()
            try:
                return bundle, self._open(bundle, deadline)
            except rendezvous.UpgradeRefused as refused:
                if refused.status != _UNAUTHORIZED:
                    raise ConnectFailed(str(refused)) from refused
            bundle = self._bundle()  # once more, as the reference does: the URL was used or too old
            try:
                return bundle, self._open(bundle, deadline)
            except rendezvous.UpgradeRefused as refused:
                raise ConnectFailed(str(refused)) from refused

    def pauses(self) -> Iterator[float]:
        """Yield the pauses between attempts to recover: 0.5 s doubling to 5 s, each up to a half longer."""
        # The contract's jitter is deterministic; the key makes it differ between clients.
        pause, attempt = FIRST_PAUSE_S, 0
        while True:
            part = crc32(b"%b%d" % (self.keys.public.x25519, attempt)) / 2**32
            yield pause * (1 + JITTER * part)
            pause, attempt = min(2 * pause, LONGEST_PAUSE_S), attempt + 1

    def _open(self, bundle: Bundle, deadline: float) -> RendezvousSocket:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ConnectTimeout("the registry took all the time there was")
        try:
            return RendezvousSocket.connect(
                bundle.url, timing=Timing(connect_s=left), connector=self._connector
            )
        except rendezvous.UpgradeRefused:
            raise
        except rendezvous.ConnectFailed as error:
            raise ConnectFailed(f"cannot connect to the relay: {error}") from error

    def _bundle(self) -> Bundle:
        try:
            bundle = self._registry.connect(self.keys.public)
        except RemoteError as error:
            # A relay that was restarted may not know the environment until its executor has registered again.
            if self._http.may_pass or (self._known is not None and self._http.is_unknown):
                raise ConnectFailed(error.text) from error
            raise RegistryRefused(error.text) from error
        if self._known is not None and bundle.executor_key != self._known.executor_key:
            raise RegistryRefused("another executor has taken over; sessions do not move there")
        self._known = bundle
        return bundle
