"""Ids of what is being opened: reserved by a request until it is answered.

An answer that waits leaves its connection's order, so a request to close the thing may be handled first.  It
finds the id here and cancels the opening, which is then refused and closes what it has made.

The answer that waits holds the `Opening`, and nobody else does: if it never gets its turn, since its
connection has ended, the id is free again.
"""

from __future__ import annotations

from collections.abc import Iterator
from weakref import ref

from execserver.protocol.errors import InvalidRequest


class Opening:
    """One id, held by the request that opens something under it."""

    __slots__ = ("__weakref__", "is_cancelled", "key")

    def __init__(self, key: str) -> None:
        self.key = key
        self.is_cancelled = False


class Openings:
    """The openings of one kind in a session."""

    def __init__(self, kind: str) -> None:
        """`kind` is what errors call it."""
        self._kind = kind
        self._held: dict[str, ref[Opening]] = {}  # some may not be held any more

    def __contains__(self, key: str) -> bool:
        return self._of(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter([key for key, held in self._held.items() if held() is not None])

    def __len__(self) -> int:
        return sum(1 for _ in self) if self._held else 0  # mostly nothing is being opened

    def reserve(self, key: str) -> Opening:
        """Reserve an id that is in no use."""
        for left in self._held.keys() - set(self):
            del self._held[left]
        opening = Opening(key)
        self._held[key] = ref(opening)
        return opening

    def release(self, opening: Opening) -> None:
        """Free the id: the thing is open, or never will be."""
        self._held.pop(opening.key, None)

    def cancel(self, key: str) -> None:
        """Have `check` refuse the opening with this id, if there is one."""
        opening = self._of(key)
        if opening is not None:
            opening.is_cancelled = True

    def cancel_all(self) -> None:
        """Have `check` refuse all of them."""
        for key in self:
            self.cancel(key)

    def _of(self, key: str) -> Opening | None:
        held = self._held.get(key)
        return None if held is None else held()

    def check(self, opening: Opening) -> None:
        """Raise InvalidRequest for an opening that was cancelled."""
        if opening.is_cancelled:
            raise InvalidRequest(f"{self._kind} {opening.key} was closed before it was open")
