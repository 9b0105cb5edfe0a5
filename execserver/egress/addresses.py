"""Internet addresses: which texts are one, and which of them are public.

A numeric host has many spellings: `127.1`, `0x7f.1`, `2130706433` and `[::ffff:7f00:1]` all lead to this
machine.  What the C library would take for an address is one here, too.
"""

from __future__ import annotations

import socket
from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_V4_CHARACTERS = frozenset("0123456789abcdefx.")

# Network and prefix length.  What is neither here nor on a list below is public.
_NOT_PUBLIC_V4 = (
    ("0.0.0.0", 8),  # unspecified, "this network"
    ("10.0.0.0", 8),
    ("100.64.0.0", 10),  # shared by the customers of a provider
    ("127.0.0.0", 8),
    ("169.254.0.0", 16),  # link-local, with the metadata service of clouds
    ("172.16.0.0", 12),
    ("192.0.0.0", 24),
    ("192.0.2.0", 24),
    ("192.168.0.0", 16),
    ("198.18.0.0", 15),
    ("198.51.100.0", 24),
    ("203.0.113.0", 24),
    ("224.0.0.0", 4),
    ("240.0.0.0", 4),
)
_NOT_PUBLIC_V6 = (
    ("::", 127),  # unspecified and loopback
    ("64:ff9b:1::", 48),  # translators of a network's own, which decide what it leads to
    ("100::", 64),
    ("2001::", 32),  # Teredo: through a relay to an IPv4 address in disguise
    ("fc00::", 7),
    ("fe80::", 10),
    ("fec0::", 10),
    ("ff00::", 8),
)
# Prefixes whose addresses lead to the IPv4 address in them, and how many bits follow that one.
_WITH_V4 = (
    ("::ffff:0:0", 96, 0),  # mapped
    ("::", 96, 0),  # "compatible", deprecated
    ("::ffff:0:0:0", 96, 0),  # translated, deprecated
    ("64:ff9b::", 96, 0),  # through a translator
    ("2002::", 16, 80),  # 6to4
)
_LOOPBACK_V4 = 127


class Address:
    """An address: `packed`, 4 or 16 bytes in network order."""

    __slots__ = ("packed",)

    def __init__(self, packed: bytes) -> None:
        self.packed = packed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and other.packed == self.packed

    def __hash__(self) -> int:
        return hash(self.packed)

    @property
    def text(self) -> str:
        """The usual spelling."""
        family = socket.AF_INET if len(self.packed) == 4 else socket.AF_INET6
        return socket.inet_ntop(family, self.packed)

    @property
    def meant(self) -> Address:
        """The IPv4 address that a mapped one leads to; itself otherwise."""
        if len(self.packed) == 16 and self.packed.startswith(_MAPPED):
            return Address(self.packed[12:])
        return self

    @property
    def is_loopback(self) -> bool:
        """True if it leads to this machine by its loopback interface."""
        meant = self.meant.packed
        return meant[0] == _LOOPBACK_V4 if len(meant) == 4 else meant == _LOOPBACK_V6

    @property
    def is_public(self) -> bool:
        """True if it belongs to the internet, with any IPv4 address inside of it."""
        number = int.from_bytes(self.packed)
        if len(self.packed) == 4:
            return not any(number >> shift == prefix for prefix, shift in _V4)
        if any(number >> shift == prefix for prefix, shift in _V6):
            return False
        return all(inner.is_public for inner in self._inside(number))

    def _inside(self, number: int) -> Iterator[Address]:
        for prefix, shift, behind in _EMBEDDED:
            if number >> shift == prefix:
                yield Address((number >> behind & 0xFFFFFFFF).to_bytes(4))


def _table(networks: tuple[tuple[str, int], ...], family: int, bits: int) -> tuple[tuple[int, int], ...]:
    """Return for each network its prefix as a number, and by how many bits an address is longer."""
    packed = [(socket.inet_pton(family, network), length) for network, length in networks]
    return tuple((int.from_bytes(one) >> (bits - length), bits - length) for one, length in packed)


_V4 = _table(_NOT_PUBLIC_V4, socket.AF_INET, 32)
_V6 = _table(_NOT_PUBLIC_V6, socket.AF_INET6, 128)
_EMBEDDED = tuple(
    (*found, behind)
    for found, (_, _, behind) in zip(
        _table(tuple((network, length) for network, length, _ in _WITH_V4), socket.AF_INET6, 128),
        _WITH_V4,
        strict=True,
    )
)
_MAPPED = socket.inet_pton(socket.AF_INET6, "::ffff:0:0")[:12]
_LOOPBACK_V6 = socket.inet_pton(socket.AF_INET6, "::1")


@lru_cache(maxsize=256)
def literal(host: str) -> Address | None:
    """Return the address that a host in lower case without brackets is, None if it is a name."""
    try:
        if ":" in host:
            return Address(socket.inet_pton(socket.AF_INET6, host))
        # `inet_aton` takes all spellings, but also stops at a blank and reads on no further.
        return Address(socket.inet_aton(host)) if _V4_CHARACTERS.issuperset(host) else None
    except (OSError, ValueError):
        return None
