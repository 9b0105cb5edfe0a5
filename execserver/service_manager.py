"""What a service manager wants to know (sd_notify): that the program serves, reloads, ends, and is alive.

systemd names a socket in NOTIFY_SOCKET, and in WATCHDOG_USEC how often it wants to hear.  Without them
nothing is sent.  Standard library only.
"""

from __future__ import annotations

import os
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

READY = "READY=1"
STOPPING = "STOPPING=1"
ALIVE = "WATCHDOG=1"


class ServiceManager:
    """Tells the service manager that an environment names, if it names one."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self.watchdog_s = self._asked_every(environ) if self._address else 0.0
        """Seconds between two signs of life; 0: nobody waits for one."""

    def tell(self, *states: str) -> None:
        """Send states; a manager that does not take them is not waited for."""
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.setblocking(False)
            try:
                sock.sendto("\n".join(states).encode(), self._address)
            except OSError:
                pass  # it is gone, or full: a service does not end for that

    def reloading(self) -> None:
        """Say that a reload begins; `READY` ends it."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    @staticmethod
    def _asked_every(environ: Mapping[str, str]) -> float:
        asked_of = environ.get("WATCHDOG_PID")
        if asked_of and asked_of != str(os.getpid()):
            return 0.0
        text = environ.get("WATCHDOG_USEC", "")
        # Half of it, as the manual advises: one that is late is no death.
        return int(text) / 2_000_000 if text.isascii() and text.isdigit() else 0.0


def _address(name: str) -> str:
    if name.startswith("@"):
        return f"\0{name[1:]}"
    return name if name.startswith("/") else ""
