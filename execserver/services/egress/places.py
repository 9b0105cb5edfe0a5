"""How many connections all proxies of a server have at most.

Each needs two descriptors, six while the kernel moves its bytes both ways; the server's other work must
not go short of them for a process that opens thousands.  The last quarter is for processes with a few
connections: some that open all they can leave no other one without.
"""

from __future__ import annotations

import resource
from typing import Protocol

FEW = 8  # connections of one process that may use the last quarter

_OF_ONE = 6  # descriptors: two sockets, and a pipe for each direction


class Accepting(Protocol):
    """What accepts connections."""

    def settle(self) -> None:
        """Accept further connections or none, as `are_free_for` says."""


class Places:
    """Counts connections, and holds all that accept while there are too many."""

    def __init__(self, limit: int) -> None:
        self._limit = max(1, min(limit, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _OF_ONE))
        self._kept = self._limit // 4
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
        if self._taken in (self._limit - self._kept, self._limit):
            self._settle()

    def give_back(self) -> None:
        """Count one less."""
        self._taken -= 1
        if self._taken + 1 in (self._limit - self._kept, self._limit):
            self._settle()

    def _settle(self) -> None:
        for each in self._accepting:
            each.settle()

    def are_free_for(self, connections: int) -> bool:
        """Return whether somebody with so many connections may accept another one."""
        return self._taken < (self._limit if connections < FEW else self._limit - self._kept)
