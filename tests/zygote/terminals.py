"""Terminals for commands of any user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def terminal() -> Iterator[tuple[int, bytes]]:
    """Make a pty that the user can open; yield its master, and its slave's path."""
    master, slave = os.openpty()
    try:
        path = os.ttyname(slave).encode()
        if os.geteuid() == 0:
            os.fchmod(slave, 0o666)
        os.set_inheritable(slave, False)
        yield master, path
    finally:
        os.close(slave)
        os.close(master)
