"""The known answers of remote mode, and a source of chance that repeats them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from execserver.wire.noise import prologue
from execserver.wire.noise_keys import PublicKeys, StaticKeys


@cache
def vectors() -> dict[str, Any]:
    """Return the whole file."""
    text = Path(__file__).with_name("data").joinpath("noise.json").read_text()
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def octets(*path: str) -> bytes:
    """Return the byte string at a path of the file."""
    value: Any = vectors()
    for name in path:
        value = value[name]
    return bytes.fromhex(value)


@cache
def identity(name: str) -> StaticKeys:
    """Return one of the four fixed identities."""
    return StaticKeys.from_seeds(
        octets("keys", name, "x25519_private"), octets("keys", name, "mlkem768_seed_d_z")
    )


def known_prologue(section: str) -> bytes:
    """Return the prologue of `handshake` or of one of the captured sessions."""
    ids = vectors()[section]
    return prologue(ids["environment_id"], ids["executor_registration_id"], ids["stream_id"])


class FixedEntropy:
    """Gives out one ephemeral identity and a list of encapsulations, in order."""

    def __init__(self, ephemeral: StaticKeys, encapsulations: Iterable[tuple[bytes, bytes]]) -> None:
        self._ephemeral = ephemeral
        self._encapsulations = list(encapsulations)

    def ephemeral(self) -> StaticKeys:
        """Return the fixed identity."""
        return self._ephemeral

    def encapsulate(self, public: PublicKeys) -> tuple[bytes, bytes]:
        """Return the next (ciphertext, shared secret)."""
        return self._encapsulations.pop(0)


def encapsulation(*path: str) -> tuple[bytes, bytes]:
    """Return (ciphertext, shared secret) as the file has them."""
    return octets(*path, "ciphertext"), octets(*path, "shared_secret")
