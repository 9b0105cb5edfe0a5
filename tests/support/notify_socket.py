"""The socket on which a service manager is told how a server is."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def notify_socket(folder: Path) -> Iterator[socket.socket]:
    """Listen in a folder, as systemd does; its name is the value of NOTIFY_SOCKET."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(folder / "notify"))
        sock.settimeout(20)
        yield sock
