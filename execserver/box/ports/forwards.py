"""What to forward, as it is typed: `[BIND:]PORT:HOST:PORT`, or the port of a SOCKS proxy.  Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

LOOPBACK: Final = "127.0.0.1"
_HOST: Final = r"\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+"
_FORWARD = re.compile(rf"(?:({_HOST}):)?([0-9]{{1,5}}):({_HOST}):([0-9]{{1,5}})")
_LISTEN = re.compile(rf"(?:({_HOST}):)?([0-9]{{1,5}})")
_LARGEST: Final = 65535
_LONGEST_HOST: Final = 255
_LONGEST_LABEL: Final = 63


class Place(NamedTuple):
    """A host, or an address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Forward(NamedTuple):
    """Where to listen, and where every connection to it leads."""

    listen: Place
    target: Place


def parse(text: str) -> Forward | None:
    """Return a forward; None if the text is none.  Port 0 to listen on takes a free one."""
    found = _FORWARD.fullmatch(text)
    if found is None:
        return None
    listen, target = _place(found[1] or LOOPBACK, found[2]), _place(found[3], found[4])
    return None if listen is None or target is None or target.port == 0 else Forward(listen, target)


def parse_listen(text: str) -> Place | None:
    """Return `[BIND:]PORT`; None for anything else."""
    found = _LISTEN.fullmatch(text)
    return None if found is None else _place(found[1] or LOOPBACK, found[2])


def _place(host: str, port: str) -> Place | None:
    host = host.strip("[]")
    if not host.isascii() or not host.isprintable() or len(host) > _LONGEST_HOST or int(port) > _LARGEST:
        return None
    if not all(0 < len(label) <= _LONGEST_LABEL for label in host.removesuffix(".").split(".")):
        return None  # no resolver takes it
    return Place(host, int(port))
