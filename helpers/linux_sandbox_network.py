"""The ways of a command to proxies: to the host's through a bridge, or to one of our own with rules.

A way is made for one attempt to make a sandbox: what serves it may have been given what listens in a network
that came to nothing.
"""

from __future__ import annotations

import _socket
import os

from execserver.egress.environment import proxy_environment
from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.sandbox.proxy.routes import HTTP_PORT, SOCKS_PORT
from execserver.zygote.confine.bubblewrap_arguments import readable_memory
from execserver.zygote.confine.child import EVERY_SIGNAL
from execserver.zygote.confine.routing import bridged, to_server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.proxy.routes import Routes
    from execserver.zygote.confine.routing import Routing

_SIGKILL = 9


class Way:
    """One way, and the process that serves it; `end` ends that."""

    __slots__ = ("_channel", "_pid", "routing")

    def __init__(self, routing: Routing, pid: int, channel: _socket.socket | None = None) -> None:
        self.routing = routing
        self._pid = pid
        self._channel = channel

    def end(self) -> None:
        """Kill and reap the process."""
        self.routing.end()
        if self._channel is not None:
            self._channel.close()
            os.kill(self._pid, _SIGKILL)
        os.waitpid(self._pid, 0)


def to_the_hosts(kernel: Kernel, env: Sequence[bytes], routes: Routes) -> Way:
    """Return a way to proxies on the host's loopback.  Raises SpawnFailure."""
    routing = bridged(kernel, env, routes)
    return Way(routing, routing.bridge_pid)


def to_our_own(env: Sequence[bytes], rules: str) -> Way:
    """Return a way to a proxy that keeps to the text of a file of rules.  Raises OSError.

    Nothing of the environment acts on the proxy, which runs outside.
    """
    variables = proxy_environment(HTTP_PORT, SOCKS_PORT, local_binding=False)
    led = [entry for entry in env if entry.partition(b"=")[0] not in variables]
    led += [name + b"=" + value for name, value in variables.items()]
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        content = readable_memory(rules.encode())
        os.set_inheritable(theirs.fileno(), True)
        line = ExecServerRuntimePaths.detect().egress_command(str(theirs.fileno()), str(content))
        null = [(os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) for number in (0, 1)]
        # A session of its own: the terminal's signals are for the command.
        pid = os.posix_spawn(
            *(line[0], line, {}), file_actions=null, setsid=True, setsigmask=(), setsigdef=EVERY_SIGNAL
        )
        os.close(content)
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return Way(to_server(led, ours.fileno()), pid, ours)
