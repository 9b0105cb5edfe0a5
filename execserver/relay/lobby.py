"""Who may stay before an upgrade, and who must go for whom when there is no room.

A connection is a stranger until it shows a token or the credential of a rendezvous URL that is good.
Strangers have a share of their own, in which the oldest makes room for the newest: however many come and say
nothing, whoever speaks at once is heard.  Of those who showed something, the one that rests for longest makes
room; nobody else is disturbed.  No token gets more than its share of the places, so whoever holds one can
keep out those who use the same token, and nobody else.  Nothing waits here, and nothing is owned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

_LEAST_STRANGERS = 64  # also when all other places are taken: somebody has to be told so
_STRANGERS_SHARE = 4  # of all places they take one in so many
_LEAST_OF_A_TOKEN = 128  # as many as an environment has executors and harnesses, and calls beside them
_TOKENS_SHARE = 4  # of all places one token takes one in so many, its upgraded connections included


class Guest(Protocol):
    """One connection before its upgrade."""

    def turn_away(self) -> None:
        """End at once, for somebody else; must not block."""


class _Own:
    """The connections of one token before their upgrade."""

    __slots__ = ("busy", "resting")

    def __init__(self) -> None:
        self.busy: set[Guest] = set()  # with a request that is being read or answered
        self.resting: dict[Guest, None] = {}  # between two requests; in the order they began to rest


class Lobby:
    """The guests of one relay.

    `links` tells how many places are taken by upgraded connections, and `links_of` by those of one token.
    """

    def __init__(self, places: int, links: Callable[[], int], links_of: Callable[[str], int]) -> None:
        self.places = places
        self.links = links
        self.links_of = links_of
        self._strangers: dict[Guest, None] = {}  # in the order they came
        self._token_of: dict[Guest, str] = {}  # of those that are known
        self._resting: dict[Guest, None] = {}  # of all tokens; in the order they began to rest
        self._own: dict[str, _Own] = {}

    def __len__(self) -> int:
        return len(self._strangers) + len(self._token_of)

    def enter(self, guest: Guest) -> None:
        """Take a new connection in; the oldest stranger goes if the share is used up."""
        self._strangers[guest] = None
        free = self.places - self._taken()
        share = max(_LEAST_STRANGERS, min(free, self.places // _STRANGERS_SHARE))
        while len(self._strangers) > share:
            self._turn_away_first(self._strangers)

    def recognize(self, guest: Guest, token_id: str | None) -> bool:
        """Note whose token the request of a guest shows, None if it shows none that is good.

        False if there is no place for one more that is known, or none for one more of this token.
        """
        if token_id is None:
            if guest not in self._strangers:
                self.leave(guest)
                self.enter(guest)
            return True
        self.leave(guest)
        if not self._has_place(token_id):
            self._strangers[guest] = None
            return False
        self._token_of[guest] = token_id
        self._own.setdefault(token_id, _Own()).busy.add(guest)
        return True

    def rest(self, guest: Guest) -> None:
        """Note that a guest's request is answered."""
        token_id = self._token_of.get(guest)
        if token_id is not None and guest not in self._resting:
            own = self._own[token_id]
            own.busy.discard(guest)
            own.resting[guest] = self._resting[guest] = None

    def make_room(self) -> bool:
        """Turn one away who has nothing to lose; tell whether there was one."""
        return self._turn_away_first(self._strangers) or self._turn_away_first(self._resting)

    def leave(self, guest: Guest) -> None:
        """Forget a guest; one that was turned away is forgotten already."""
        self._strangers.pop(guest, None)
        self._resting.pop(guest, None)
        token_id = self._token_of.pop(guest, None)
        if token_id is not None:
            own = self._own[token_id]
            own.busy.discard(guest)
            own.resting.pop(guest, None)
            if not (own.busy or own.resting):
                del self._own[token_id]

    def _has_place(self, token_id: str) -> bool:
        """Tell whether there is a place for one more of a token; one that rests makes room if need be."""
        share = max(_LEAST_OF_A_TOKEN, self.places // _TOKENS_SHARE)
        own = self._own.get(token_id) or _Own()
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
