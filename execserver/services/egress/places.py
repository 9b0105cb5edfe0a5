"""How many connections all proxies of a server have at most.

Each needs two descriptors, four while the kernel moves its bytes; the server's other work must not go short
of them for a process that opens thousands.
"""

from __future__ import annotations

import resource
from typing import Protocol


class Accepting(Protocol):
    """What accepts connections."""

    def pause(self) -> None:
        """Accept none for now."""

    def resume(self) -> None:
        """Accept again."""


class Places:
    """Counts connections, and holds all that accept while there are too many."""

    def __init__(self, limit: int) -> None:
        self._limit = max(1, min(limit, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self._taken = 0
        self._accepting: set[Accepting] = set()

    def add(self, accepting: Accepting) -> None:
        """Note somebody who accepts."""
        self._accepting.add(accepting)

    def discard(self, accepting: Accepting) -> None:
        """Forget one that does no longer."""
        self._accepting.discard(accepting)

    def take(self) -> None:
        """Count one connection more."""
        self._taken += 1
        if self._taken == self._limit:
            for each in self._accepting:
                each.pause()

    def give_back(self) -> None:
        """Count one less."""
        self._taken -= 1
        if self._taken == self._limit - 1:
            for each in self._accepting:
                each.resume()

    @property
    def are_free(self) -> bool:
        """True if another connection may be accepted."""
        return self._taken < self._limit
