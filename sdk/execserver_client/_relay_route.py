"""The way to a box behind a relay, as the session needs it; the cryptography is loaded only here."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from execserver.client.errors import RemoteModeUnavailable
from execserver.client.options import REMOTE_IN_FLIGHT, RemoteExecServerConnectArgs

if TYPE_CHECKING:
    from execserver_client._relay import RelayTransport


class RelayRoute(NamedTuple):
    """What makes the connections, the pauses between attempts to recover, and the requests in flight."""

    open_transport: Callable[[float], Coroutine[Any, Any, RelayTransport]]
    pauses: Callable[[], Iterator[float]]
    max_in_flight: int


def relay_route(args: RemoteExecServerConnectArgs, environ: Mapping[str, str] | None = None) -> RelayRoute:
    """Return the way to an executor; nothing is connected yet.

    Proxies and trusted certificates are those of `environ`, by default this process's, unless `ca_file` of
    the options names certificates.  Raises `RemoteConfigurationError`, and `RemoteModeUnavailable` where the
    cryptography is missing.
    """
    try:
        from execserver_client._relay import RelayTransport
        from execserver_client._relay_connector import RelayConnector
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "cryptography":
            raise
        text = "a relay needs the package `cryptography`, which execserver-client[relay] brings"
        raise RemoteModeUnavailable(text) from error
    connector = RelayConnector(args, environ)

    async def open_transport(timeout: float) -> RelayTransport:
        return await RelayTransport.connect(connector, timeout)

    in_flight = min(args.options.max_in_flight, REMOTE_IN_FLIGHT)
    return RelayRoute(open_transport, connector.access.pauses, in_flight)
