"""Who goes before whom when the requests of one connection are worked on at the same time.

Each request is of one lane, and either alone in it or shared.  One that is alone waits for all of its lane
that came before, a shared one for those that were alone.  So effects of one lane keep their order, and looks
at it see exactly the effects that were asked for before.  Lanes know nothing of each other.

No I/O: whoever owns the requests does the waiting.  It always ends, since one waits for earlier ones only.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lanes(Generic[T]):
    """The lanes of one connection; what is in none of them costs nothing."""

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        self._lanes: dict[Hashable, _Lane[T]] = {}

    def enter(self, key: Hashable, item: T, *, alone: bool) -> list[T]:
        """Add an item behind all others of its lane; return those that it has to wait for."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        last = [] if lane.last is None else [lane.last]
        if not alone:
            lane.shared.append(item)
            return last
        # Those that are shared wait for the last one that was alone, so that needs no waiting for twice.
        before = lane.shared or last
        lane.last, lane.shared = item, []
        return before

    def leave(self, key: Hashable, item: T) -> None:
        """Remove an item that is done."""
        lane = self._lanes.get(key)
        if lane is None:
            return
        if lane.last is item:
            lane.last = None
        elif item in lane.shared:
            lane.shared.remove(item)
        if lane.last is None and not lane.shared:
            del self._lanes[key]

    def __len__(self) -> int:
        return len(self._lanes)


class _Lane(Generic[T]):
    """One lane: the last item that is alone, and the shared ones behind it."""

    __slots__ = ("last", "shared")

    def __init__(self) -> None:
        self.last: T | None = None
        self.shared: list[T] = []
