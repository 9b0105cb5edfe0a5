"""The upgrade of a client's connection to a WebSocket, without the connection: bytes out, bytes in.

The usual answer is known by `wire.client_upgrade`; the `websockets` library is loaded for any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from execserver.client.carriers.urls import Address
from execserver.client.errors import InvalidUrl
from execserver.wire import client_upgrade

if TYPE_CHECKING:
    from execserver.client.carriers.careful_upgrade import CarefulUpgrade


class Upgrade:
    """One attempt; `request` is what to send."""

    def __init__(self, address: Address, headers: Mapping[str, str]) -> None:
        """Raises `InvalidUrl` for a header with a line end."""
        self._address = address
        self._key = client_upgrade.new_key()
        self._received = bytearray()
        self._careful: CarefulUpgrade | None = None
        try:
            self.request = client_upgrade.request(
                address.authority, address.resource, self._key, headers, address.user
            )
        except ValueError as error:
            raise InvalidUrl(str(error)) from None

    def feed(self, data: bytes) -> bytes | None:
        """Take received bytes, b"" for their end; return None while more is needed.

        Returns what came behind the answer once it is accepted.  Raises `ConnectFailed` for a refusal.
        """
        if self._careful is None:
            self._received += data
            if data and client_upgrade.may_be_usual(self._received):
                return None
            head, _, early = bytes(self._received).partition(client_upgrade.HEAD_END)
            if client_upgrade.is_usual(head, self._key):
                return early
            # Late: hardly any server needs it.
            from execserver.client.carriers.careful_upgrade import CarefulUpgrade

            self._careful = CarefulUpgrade(self._address, self._key)
            begun, ended = bytes(self._received), not data
            early_or_none = self._careful.feed(begun) if begun else None
            return self._careful.feed(b"") if early_or_none is None and ended else early_or_none
        return self._careful.feed(data)

    def let_go(self) -> None:
        """Free what the library holds in a cycle; nothing can be fed after this."""
        if self._careful is not None:
            self._careful.let_go()
