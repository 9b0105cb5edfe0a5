"""Connection admission before an upgrade: which connections keep a place when there is no room for all.

A connection is unauthenticated until it shows a valid token, or the valid credential of a rendezvous URL.
Unauthenticated connections have a share of their own, in which the oldest makes room for the newest: however
many silent ones come, one that sends its request at once is served.  Of the authenticated ones, the longest
idle makes room; no other is disturbed.  No token gets more than its share of the places, so its holder can
keep out only those who use the same token.  Nothing here waits or owns a socket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

_LEAST_UNAUTHENTICATED = 64  # even if no place is left: a client with a token must be heard to get its 503
_UNAUTHENTICATED_SHARE = 4  # unauthenticated connections have a quarter of all places
_LEAST_OF_A_TOKEN = 128  # enough for an environment's executor, its harnesses, and calls beside them
_TOKENS_SHARE = 4  # one token has a quarter of all places, its upgraded connections included


class Guest(Protocol):
    """One connection before its upgrade."""

    def turn_away(self) -> None:
        """End at once to make room; must not block."""


class OpenSockets:
    """Counts upgraded connections.  Asked at each arrival, so it must not cost a look at each of them."""

    def __init__(self) -> None:
        self.count = 0
        self._of: Counter[str] = Counter()

    def add(self, token_id: str) -> None:
        """Note one that was opened with a token."""
        self.count += 1
        self._of[token_id] += 1

    def remove(self, token_id: str) -> None:
        """Note that one is closed; nothing stays of a token that has no other."""
        self.count -= 1
        self._of[token_id] -= 1
        if not self._of[token_id]:
            del self._of[token_id]

    def count_of(self, token_id: str) -> int:
        """Return how many were opened with one token."""
        return self._of[token_id]


class _Own:
    """The connections of one token before their upgrade."""

    __slots__ = ("busy", "resting")

    def __init__(self) -> None:
        self.busy: set[Guest] = set()  # with a request that is being read or answered
        self.resting: dict[Guest, None] = {}  # idle between two requests, the longest idle first


class Admission:
    """The connections of one relay before their upgrade.

    `links` returns how many places upgraded connections take, `links_of` how many those of one token take.
    """

    def __init__(self, places: int, links: Callable[[], int], links_of: Callable[[str], int]) -> None:
        self.places = places
        self.links = links
        self.links_of = links_of
        self._unauthenticated: dict[Guest, None] = {}  # unauthenticated, the oldest first
        self._token_of: dict[Guest, str] = {}  # authenticated
        self._resting: dict[Guest, None] = {}  # idle, of all tokens; the longest idle first
        self._own: dict[str, _Own] = {}

    def __len__(self) -> int:
        return len(self._unauthenticated) + len(self._token_of)

    def enter(self, guest: Guest) -> None:
        """Add a new connection; the oldest unauthenticated one ends if their share is used up."""
        self._unauthenticated[guest] = None
        free = self.places - self._taken()
        share = max(_LEAST_UNAUTHENTICATED, min(free, self.places // _UNAUTHENTICATED_SHARE))
        while len(self._unauthenticated) > share:
            self._turn_away_first(self._unauthenticated)

    def knows(self, guest: Guest) -> bool:
        """Tell whether a connection is here."""
        return guest in self._unauthenticated or guest in self._token_of

    def recognize(self, guest: Guest, token_id: str | None) -> bool:
        """Note the token that a request shows, None if it shows no valid one.

        Returns False if there is no place for one more authenticated connection, or for one more of this
        token.
        """
        if token_id is None:
            # It may have shown a valid token in an earlier request: the last request counts.
            if guest not in self._unauthenticated:
                self.leave(guest)
                self.enter(guest)
            return True
        self.leave(guest)
        if not self._has_place(token_id):
            # Not by `enter`: no other has to go for a connection that only waits for its 503.
            self._unauthenticated[guest] = None
            return False
        self._token_of[guest] = token_id
        self._own.setdefault(token_id, _Own()).busy.add(guest)
        return True

    def token_of(self, guest: Guest) -> str | None:
        """Return the id of the token that a connection has shown; None if it has shown none."""
        return self._token_of.get(guest)

    def rest(self, guest: Guest) -> None:
        """Note that the request of a connection is answered: it is idle now."""
        token_id = self._token_of.get(guest)
        if token_id is not None and guest not in self._resting:
            own = self._own[token_id]
            own.busy.discard(guest)
            own.resting[guest] = self._resting[guest] = None

    def make_room(self) -> bool:
        """End one connection that has no request in progress; return whether there was one.

        An unauthenticated connection goes first.
        """
        return self._turn_away_first(self._unauthenticated) or self._turn_away_first(self._resting)

    def leave(self, guest: Guest) -> None:
        """Forget a connection; one that was turned away is forgotten already."""
        self._unauthenticated.pop(guest, None)
        self._resting.pop(guest, None)
        token_id = self._token_of.pop(guest, None)
        if token_id is not None:
            own = self._own[token_id]
            own.busy.discard(guest)
            own.resting.pop(guest, None)
            if not (own.busy or own.resting):
                del self._own[token_id]

    def _has_place(self, token_id: str) -> bool:
        """True if one more connection of a token has a place; an idle one ends for it if necessary."""
        share = max(_LEAST_OF_A_TOKEN, self.places // _TOKENS_SHARE)
        own = self._own.get(token_id) or _Own()
        # Above its share a token makes room by itself, so that no other token loses a place to it.
        if len(own.busy) + len(own.resting) + self.links_of(token_id) >= share:
            return self._turn_away_first(own.resting)
        return self._taken() < self.places or self._turn_away_first(self._resting)

    def _taken(self) -> int:
        return len(self._token_of) + self.links()

    def _turn_away_first(self, guests: dict[Guest, None]) -> bool:
        guest = next(iter(guests), None)
        if guest is None:
            return False
        self.leave(guest)
        guest.turn_away()
        return True
