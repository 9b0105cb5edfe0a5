"""The ports on which the server itself listens: its proxies never connect to them.

Behind the server's own port is a client without a sandbox; behind a proxy's port that proxy, in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable

from gevent import socket

from execserver.egress.addresses import Address


class OwnPorts:
    """Ports of this server's listeners, whatever address they are bound to."""

    def __init__(self) -> None:
        self._ports: set[int] = set()

    def add(self, *ports: int) -> None:
        """Note ports that are listened on."""
        self._ports.update(ports)

    def remove(self, *ports: int) -> None:
        """Forget ports that are closed."""
        self._ports.difference_update(ports)

    def leads_to_us(self, addresses: Iterable[Address], port: int) -> bool:
        """Return whether any of the addresses could be this machine, and the port one of ours."""
        return port in self._ports and any(_is_of_this_machine(address) for address in addresses)


def _is_of_this_machine(address: Address) -> bool:
    if address.is_loopback or not any(address.meant.packed):
        return True
    family = socket.AF_INET if len(address.packed) == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address.text, 0))
        except OSError:
            return False
    return True
