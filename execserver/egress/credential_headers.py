"""Where in a request a credential stands, and the request with the real one.

Only one header of a request is looked at for each credential, and only if it is there once: of two with the
same name nobody knows which one a server reads.
"""

from __future__ import annotations

import binascii

from execserver.egress.providers import Auth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from execserver.egress.providers import Destination, Provider

    Fields = list[tuple[bytes, bytes]]

_AUTHORIZATION = b"authorization"
_PLAIN = {b"bearer": Auth.BEARER, b"token": Auth.TOKEN}


class Credential:
    """A value of a process that is replaced; nothing prints it."""

    __slots__ = ("_destinations", "auths", "header", "name", "prefix", "real", "stand_in")

    def __init__(
        self, name: str, real: bytes, stand_in: bytes, provider: Provider, destinations: Sequence[Destination]
    ) -> None:
        self.name = name
        self.real = real
        self.stand_in = stand_in
        self.auths = provider.auths
        self.header = None if provider.header is None else provider.header.encode()
        self.prefix = provider.prefix.encode()
        self._destinations = destinations

    def is_at(self, host: str, port: int) -> bool:
        """Return whether it may be sent to a host at all."""
        return any(destination.is_at(host, port) for destination in self._destinations)

    def covers(self, host: str, port: int, target: str) -> bool:
        """Return whether it may be sent with a request."""
        return any(destination.covers(host, port, target) for destination in self._destinations)


def replaced(fields: Fields, credentials: Sequence[Credential]) -> Fields:
    """Return fields in which the stand-ins of some credentials are replaced."""
    counts: dict[bytes, int] = {}
    for name, _ in fields:
        counts[name.lower()] = counts.get(name.lower(), 0) + 1
    return [
        (name, _first(name.lower(), value, credentials) if counts[name.lower()] == 1 else value)
        for name, value in fields
    ]


def _first(name: bytes, value: bytes, credentials: Sequence[Credential]) -> bytes:
    for credential in credentials:
        found = _real_value(name, value, credential)
        if found is not None:
            return found
    return value


def _real_value(name: bytes, value: bytes, credential: Credential) -> bytes | None:
    if name == credential.header and value == credential.prefix + credential.stand_in:
        return credential.prefix + credential.real
    if name != _AUTHORIZATION:
        return None
    scheme, _, rest = value.partition(b" ")
    kind = scheme.lower()
    rest = rest.strip(b" \t")
    if kind == b"basic" and Auth.BASIC in credential.auths:
        pair = _basic(rest, credential)
        return None if pair is None else scheme + b" " + pair
    if _PLAIN.get(kind) in credential.auths and rest == credential.stand_in:
        return scheme + b" " + credential.real
    return None


def _basic(encoded: bytes, credential: Credential) -> bytes | None:
    """Return a user and a password, either of which may be the credential, or both together."""
    try:
        pair = binascii.a2b_base64(encoded, strict_mode=True)
    except binascii.Error:
        return None
    user, colon, password = pair.partition(b":")
    if pair == credential.stand_in:
        made = credential.real
    elif credential.stand_in in (user, password):
        parts = [credential.real if part == credential.stand_in else part for part in (user, password)]
        made = parts[0] + colon + parts[1]
    else:
        return None
    return binascii.b2a_base64(made, newline=False)
