"""The way from a sandbox with a network of its own to its proxies: who accepts there, and at which ports.

The network is new, so every port in it is free: ports are chosen before it exists, and the environment is
final before the fork.  Whoever makes the network calls `open`, which listens there and passes the sockets on:
to the server, which is the proxy itself, or to a proxy bridge, where the proxies are others'.  A socket stays
in the network that it was made in, so only what is in the sandbox can connect to it.
"""

from __future__ import annotations

from execserver.sandbox.proxy.bridge import bring_up_loopback, pass_listeners, start_bridge
from execserver.sandbox.proxy.routes import FAILURE, HTTP_PORT, SOCKS_PORT
from execserver.zygote.confine.child import tying_to_parent
from execserver.zygote.confine.request import root_failure, routes_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.proxy.bridge import Bridge
    from execserver.sandbox.proxy.routes import Routes


class Routing:
    """The routes of one command; `env` is the environment that leads there.

    `channel` is the socket for the listening sockets, in a fork whatever number it has there.
    """

    __slots__ = ("_bridge", "_ports", "channel", "env")

    def __init__(
        self, env: Sequence[bytes], ports: Sequence[int], channel: int, bridge: Bridge | None = None
    ) -> None:
        self.env = env
        self._ports = ports
        self.channel = channel
        self._bridge = bridge

    def open(self) -> None:
        """Listen in the network of this process, which must own it, and pass the sockets on.

        Raises OSError.
        """
        bring_up_loopback()
        self.listen()

    def listen(self) -> None:
        """Do the same where loopback is up already."""
        pass_listeners(self.channel, self._ports)

    def forked(self) -> None:
        """Close our copies of what a fork uses: a bridge must see the end of a sandbox that failed."""
        if self._bridge is not None:
            self._bridge.close_channel()

    def end(self) -> None:
        """End the bridge, if there is one; the caller reaps it."""
        if self._bridge is not None:
            self._bridge.kill()

    @property
    def bridge_pid(self) -> int:
        """The pid of the bridge; 0 without one."""
        return 0 if self._bridge is None else self._bridge.pid


def to_server(env: Sequence[bytes], channel: int) -> Routing:
    """Return the way to a server that accepts by itself, at those of its ports that the environment names.

    Nobody listens at another one, which a variable of the client's own may name: until the server has closed
    it, a command would be let in there.  `channel` stays the caller's.  Raises SpawnFailure.
    """
    ports = {port for _, port in routes_of(env).endpoints} & {HTTP_PORT, SOCKS_PORT}
    return Routing(env, sorted(ports), channel)


def through_bridge(kernel: Kernel, env: Sequence[bytes]) -> Routing:
    """Start a proxy bridge to the proxies on the host's loopback that an environment names.

    Raises SpawnFailure.
    """
    return bridged(kernel, env, routes_of(env))


def bridged(kernel: Kernel, env: Sequence[bytes], routes: Routes) -> Routing:
    """Start a proxy bridge for these routes of an environment.  Raises SpawnFailure."""
    try:
        bridge = start_bridge(routes.endpoints, tying_to_parent(kernel))
    except OSError as error:
        raise root_failure(error, FAILURE) from None
    ports = range(HTTP_PORT, HTTP_PORT + len(routes.endpoints))
    return Routing(routes.rewrite(env, ports), ports, bridge.channel, bridge)
