"""Who may stay before an upgrade, and who must go for whom when there is no room.

A connection is a stranger until it shows a token or the credential of a rendezvous URL that is good.
Strangers have a share of their own, in which the oldest makes room for the newest: however many come and say
nothing, whoever speaks at once is heard.  Of those who showed something, the one that rests for longest makes
room; nobody else is disturbed.  Nothing waits here, and nothing is owned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

_LEAST_STRANGERS = 64  # also when all other places are taken: somebody has to be told so
_STRANGERS_SHARE = 4  # of all places they take one in so many


class Guest(Protocol):
    """One connection before its upgrade."""

    def turn_away(self) -> None:
        """End at once, for somebody else; must not block."""


class Lobby:
    """The guests of one relay.  `links` tells how many places are taken by upgraded connections."""

    def __init__(self, places: int, links: Callable[[], int]) -> None:
        self.places = places
        self.links = links
        self._strangers: dict[Guest, None] = {}  # in the order they came
        self._resting: dict[Guest, None] = {}  # known, between two requests; in the order they began to rest
        self._busy: set[Guest] = set()  # known, with a request that is being read or answered

    def __len__(self) -> int:
        return len(self._strangers) + len(self._resting) + len(self._busy)

    def enter(self, guest: Guest) -> None:
        """Take a new connection in; the oldest stranger goes if the share is used up."""
        self._strangers[guest] = None
        free = self.places - self._taken()
        share = max(_LEAST_STRANGERS, min(free, self.places // _STRANGERS_SHARE))
        while len(self._strangers) > share:
            _turn_away_first(self._strangers)

    def recognize(self, guest: Guest, known: bool) -> bool:
        """Note what the request of a guest shows; False if there is no place for one more that is known."""
        if not known:
            if guest not in self._strangers:
                self.leave(guest)
                self.enter(guest)
            return True
        self.leave(guest)
        if self._taken() >= self.places:
            if not self._resting:
                self._strangers[guest] = None
                return False
            _turn_away_first(self._resting)
        self._busy.add(guest)
        return True

    def rest(self, guest: Guest) -> None:
        """Note that a guest's request is answered."""
        if guest in self._busy:
            self._busy.discard(guest)
            self._resting[guest] = None

    def make_room(self) -> bool:
        """Turn one away who has nothing to lose; tell whether there was one."""
        for waiting in (self._strangers, self._resting):
            if waiting:
                _turn_away_first(waiting)
                return True
        return False

    def leave(self, guest: Guest) -> None:
        """Forget a guest; one that was turned away is forgotten already."""
        self._strangers.pop(guest, None)
        self._resting.pop(guest, None)
        self._busy.discard(guest)

    def _taken(self) -> int:
        return len(self._resting) + len(self._busy) + self.links()


def _turn_away_first(guests: dict[Guest, None]) -> None:
    guest = next(iter(guests))
    del guests[guest]
    guest.turn_away()
