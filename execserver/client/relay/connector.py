"""How a harness connects to its executor: ask the registry, open a WebSocket to the rendezvous.

One connector serves one client; whom it may talk to is its `RelayAccess`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Final

import gevent

from execserver.client.errors import ConnectFailed, ConnectTimeout
from execserver.client.options import ExecServerClientConnectOptions, RemoteExecServerConnectArgs
from execserver.client.relay.access import RelayAccess
from execserver.remote import rendezvous
from execserver.remote.answers import registry_environment
from execserver.remote.connecting import RendezvousConnector
from execserver.remote.errors import RemoteError
from execserver.remote.http import ApiClient
from execserver.remote.registry import RegistryClient
from execserver.remote.registry_answers import Bundle
from execserver.remote.rendezvous import RendezvousSocket
from execserver.remote.tools import Timing

_UNAUTHORIZED: Final = 401


class RelayConnector:
    """Makes the connections of one client to one environment."""

    def __init__(self, args: RemoteExecServerConnectArgs, environ: Mapping[str, str] | None = None) -> None:
        """Check the arguments, make keys.  Raises `RemoteConfigurationError` or `RemoteModeUnavailable`."""
        self.access = access = RelayAccess(args)
        self._options = args.options
        environ = registry_environment(os.environ if environ is None else environ)
        self._connector = RendezvousConnector(environ)
        self._registry = RegistryClient(
            *(access.base_url, access.environment_id, lambda: access.headers),
            ApiClient(environ, meanwhile=access.make_keys_ahead),
        )

    @property
    def options(self) -> ExecServerClientConnectOptions:
        """The options of the client."""
        return self._options

    def connect(self, timeout: float, *, for_new_stream: bool = True) -> tuple[Bundle, RendezvousSocket]:
        """Ask the registry and connect, within about `timeout` seconds; make the new stream meanwhile.

        Raises `ConnectFailed` or `ConnectTimeout` for what may pass, `RegistryRefused` for a final refusal.
        """
        deadline = time.monotonic() + timeout
        with gevent.Timeout(timeout, ConnectTimeout(f"the relay did not answer within {timeout:g} s")):
            bundle = self._bundle()
            try:
                return bundle, self._open(bundle, deadline, for_new_stream)
            except rendezvous.UpgradeRefused as refused:
                if refused.status != _UNAUTHORIZED:
                    raise ConnectFailed(str(refused)) from refused
            bundle = self._bundle()  # once more, as the reference does: the URL was used or too old
            try:
                return bundle, self._open(bundle, deadline, for_new_stream)
            except rendezvous.UpgradeRefused as refused:
                raise ConnectFailed(str(refused)) from refused

    def pauses(self) -> Iterator[float]:
        """Yield the pauses between attempts to recover; see `RelayAccess.pauses`."""
        return self.access.pauses()

    def _open(self, bundle: Bundle, deadline: float, for_new_stream: bool) -> RendezvousSocket:
        def meanwhile() -> None:
            if for_new_stream:
                self.access.make_stream_ahead(bundle, time.monotonic())

        left = deadline - time.monotonic()
        if left <= 0:
            raise ConnectTimeout("the registry took all the time there was")
        try:
            return RendezvousSocket.connect(
                *(bundle.url, None, Timing(connect_s=left), self._connector), meanwhile=meanwhile
            )
        except rendezvous.UpgradeRefused:
            raise
        except rendezvous.ConnectFailed as error:
            raise ConnectFailed(f"cannot connect to the relay: {error}") from error

    def _bundle(self) -> Bundle:
        try:
            bundle = self._registry.connect(self.access.keys.public)
        except RemoteError as error:
            raise self.access.refused(error) from error
        return self.access.accept(bundle)
