"""A provider's keys: a JWK set (RFC 7517), read once, and asked for the key of a token.

Pure.  The set is bounded in bytes and in keys.  Keys of no use here are left out, as sets may hold some for
other purposes; a set that cannot be read, or holds none of use, is an error as a whole.  A name that stands
for two keys of one algorithm stands for none.
"""

from __future__ import annotations

import logging

from execserver.access.jwt_parts import Malformed, strict_object
from execserver.access.oidc.algorithms import PublicKey, UnusableKey, public_key

MAX_BYTES = 256 * 1024
MAX_KEYS = 200
MAX_KID = 256  # characters

_log = logging.getLogger(__name__)


class BadKeySet(ValueError):
    """The text is no key set that can be used; the exception says why."""


class KeySet:
    """The keys by name and algorithm."""

    may_wait = False

    __slots__ = ("_by_algorithm", "_by_name")

    def __init__(self, keys: list[tuple[str | None, PublicKey]]) -> None:
        self._by_name: dict[tuple[str, str], PublicKey | None] = {}
        self._by_algorithm: dict[str, PublicKey | None] = {}
        for kid, key in keys:
            for algorithm in key.algorithms:
                # None from the second one on: which of them is meant cannot be told.
                self._by_algorithm[algorithm] = None if algorithm in self._by_algorithm else key
                if kid is not None:
                    name = (kid, algorithm)
                    self._by_name[name] = None if name in self._by_name else key

    def find(self, kid: str | None, algorithm: str) -> PublicKey | None:
        """Return the key that a token names; for one that names none, the only key of the algorithm."""
        if kid is None:
            return self._by_algorithm.get(algorithm)
        return self._by_name.get((kid, algorithm))


def read_key_set(data: bytes) -> KeySet:
    """Return the key set of a JSON text.  Raises BadKeySet."""
    if len(data) > MAX_BYTES:
        raise BadKeySet(f"it is longer than {MAX_BYTES} bytes")
    try:
        keys = strict_object(data).get("keys")
    except Malformed as error:
        raise BadKeySet(f"it is {error}") from None
    if not isinstance(keys, list):
        raise BadKeySet("it has no list of keys")
    if len(keys) > MAX_KEYS:
        raise BadKeySet(f"it has more than {MAX_KEYS} keys")
    usable = [found for position, jwk in enumerate(keys) if (found := _usable(position, jwk))]
    if not usable:
        raise BadKeySet("it has no key that can be used: RSA of 2048 bits or more, EC or Ed25519")
    return KeySet(usable)


def _usable(position: int, jwk: object) -> tuple[str | None, PublicKey] | None:
    try:
        if not isinstance(jwk, dict):
            raise UnusableKey("it is no object")
        kid = jwk.get("kid")
        if not isinstance(kid, str | None) or len(kid or "") > MAX_KID:
            raise UnusableKey("its name is no short text")
        return kid, public_key(jwk)
    except UnusableKey as reason:
        _log.debug("key %d of the provider is left out: %s", position, reason)
        return None
