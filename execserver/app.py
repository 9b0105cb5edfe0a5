"""Starts a server: zygote, socket, listen URL, and only then everything that takes time to import.

The order is deliberate.  The zygote is exec'ed before anything of the server exists that it could inherit.
The socket is bound and its URL announced before gevent, msgspec and the rest are imported: the kernel
queues whoever connects meanwhile.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from execserver.listen_url import Stdio, WsListen, listen_url
from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.settings import Settings
from execserver.transports.tuning import tune
from execserver.zygote.launch import start_zygote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.remote.config import RemoteEnvironmentConfig, RemoteExecutorConfig

Announce = Callable[[str | None], None]


def serve(
    listen: WsListen | Stdio, settings: Settings, runtime_paths: ExecServerRuntimePaths, announce: Announce
) -> int:
    """Serve until a signal or, on stdio, until the input ends; return the exit status.

    `announce` is called once the server can be reached: with its URL, or None on stdio.  Raises OSError
    when the address cannot be listened on; nothing is left running then.
    """
    inherited = dict(os.environb)
    soft_nofile = open_files_limit()
    sock = bind(listen, settings) if isinstance(listen, WsListen) else None
    command = zygote_command(runtime_paths, inherited)
    zygote = start_zygote(command, soft_nofile)
    announce(None if sock is None else _url_of(sock))

    from execserver.server import Server  # late: see above

    doctor = runtime_paths.command("doctor", "--json")
    server = Server(settings, command, doctor, zygote, soft_nofile, inherited)
    return server.run_stdio() if sock is None else server.run_websocket(sock)


def serve_remote(
    config: RemoteEnvironmentConfig | RemoteExecutorConfig,
    settings: Settings,
    runtime_paths: ExecServerRuntimePaths,
    announce: Announce,
) -> int:
    """Serve as a remote environment until a signal; return the exit status.

    `announce` is called with None before anything is done that is worth a line in the log.  Raises
    RemoteError when there is no way to go on; nothing is left running then.
    """
    inherited = dict(os.environb)
    soft_nofile = open_files_limit()
    command = zygote_command(runtime_paths, inherited)
    zygote = start_zygote(command, soft_nofile)
    announce(None)

    from execserver.server import Server

    doctor = runtime_paths.command("doctor", "--json")
    return Server(settings, command, doctor, zygote, soft_nofile, inherited).run_remote(config)


def bind(listen: WsListen, settings: Settings) -> socket.socket:
    """Return a listening, non-blocking socket; raises OSError."""
    family = socket.AF_INET6 if listen.is_ipv6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        address = (
            (listen.host, listen.port, 0, listen.scope_id) if listen.is_ipv6 else (listen.host, listen.port)
        )
        sock.bind(address)
        tune(sock, settings)
        sock.listen(settings.listen_backlog)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def zygote_command(runtime_paths: ExecServerRuntimePaths, inherited: dict[bytes, bytes]) -> list[bytes]:
    """Return the command that starts a zygote."""
    return [*runtime_paths.zygote_command(), *filter(None, [inherited.get(b"XDG_RUNTIME_DIR")])]


def open_files_limit() -> int:
    """Return the soft limit of open files, which children shall keep."""
    import resource  # late: one small extension module, and only a server needs it

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _url_of(sock: socket.socket) -> str:
    host, port, *rest = sock.getsockname()
    return listen_url(host, port, rest[1] if rest else 0)
