"""Hosts and authorities (`host:port`) as a client of the proxy writes them, in one spelling.

What could be read in two ways is refused, not repaired: NUL, blanks, percent signs (and with them IPv6
scopes), letters outside ASCII, empty labels.  Every client writes an international name in Punycode.
"""

from __future__ import annotations

from functools import lru_cache

from execserver.egress.addresses import literal

MAX_HOST_BYTES = 253
_MAX_WRITTEN = 2 * MAX_HOST_BYTES  # with brackets and dots at the end; a bound of what is remembered, too
_NAME = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-_")


class BadHost(ValueError):
    """The text is no host, or no authority."""


@lru_cache(maxsize=256)
def normal_host(text: str) -> str:
    """Return a host in lower case, without brackets and trailing dots.  Raises BadHost."""
    if len(text) > _MAX_WRITTEN:
        raise BadHost("longer than any host name")
    host = text.rstrip(".").lower()
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if ":" in host or bracketed:
        address = literal(host) if ":" in host else None
        if address is None:
            raise BadHost("not an IPv6 address")
        return address.text
    labels = host.split(".")
    if not host or len(host) > MAX_HOST_BYTES or not _NAME.issuperset(host):
        raise BadHost("not a host name")
    if any(not 0 < len(label) <= 63 for label in labels):
        raise BadHost("a label of the host name is empty or longer than 63 characters")
    return host


@lru_cache(maxsize=256)  # a process asks for the same few again and again
def split_authority(text: str, default_port: int | None) -> tuple[str, int]:
    """Return the normal host and the port of `host`, `host:port` or `[address]:port`.

    Raises BadHost; also for a missing port if there is no default.
    """
    head, bracket, rest = text.rpartition("]")
    if bracket:
        name, colon, digits = head + bracket, rest[:1], rest[1:]
        if colon not in ("", ":"):
            raise BadHost("text behind the brackets")
    else:
        name, colon, digits = text.partition(":")
    if colon:
        port = _port(digits)
    elif default_port is None:
        raise BadHost("no port")
    else:
        port = default_port
    return normal_host(name), port


def has_port(text: str) -> bool:
    """True if an authority names a port."""
    return ":" in text.rpartition("]")[2]


def _port(digits: str) -> int:
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 5 or not 0 < int(digits) <= 65535:
        raise BadHost("not a port")
    return int(digits)


def shown(host: str, port: int) -> str:
    """Return host and port as an authority."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
