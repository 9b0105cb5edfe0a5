"""A provider's keys by its URL: when they are asked for, and how long they count.

They are asked for again once they are FRESH_S old, and when a token names one that is not there; never more
often than every RETRY_S, whatever comes, and once for all who wait.  A provider that does not answer leaves
the keys as they were for KEPT_S after its last answer; then there are none.
"""

from __future__ import annotations

import logging
import time

from execserver.access.oidc.keys import Key, NoKeys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.access.oidc.key_set import KeySet
    from execserver.eventloop.single_flight import SingleFlight

FRESH_S = 600.0
RETRY_S = 10.0
KEPT_S = 3600.0
MAX_WAITING = 256  # connections; who comes when as many wait is judged by the keys that are there

_log = logging.getLogger(__name__)


def seconds_since_boot() -> float:
    """Return the time of a clock that goes on while the machine sleeps: keys age then, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class IssuerKeys:
    """The keys that `fetch` gets from a provider; it raises NoKeys, and may wait.  A `KeySource`."""

    may_wait = True

    def __init__(self, fetch: Callable[[], KeySet], clock: Callable[[], float] = seconds_since_boot) -> None:
        self._fetch = fetch
        self._clock = clock
        self._keys: KeySet | None = None
        self._fetched_at = self._tried_at = float("-inf")
        self._flight: SingleFlight | None = None

    def find(self, kid: str | None, algorithm: str) -> Key | None:
        """See `KeySource`."""
        found = self._current(kid, algorithm)
        if found is None or self._age >= FRESH_S:
            self.ask()
            found = self._current(kid, algorithm)
        if self._age >= KEPT_S:
            raise NoKeys("the provider has not answered for too long")
        return found

    def ask(self) -> None:
        """Wait for an answer of the provider, unless it has been asked a moment ago."""
        if self._flight is None:
            from execserver.eventloop.single_flight import SingleFlight  # late: it loads gevent

            self._flight = SingleFlight(self._refresh, MAX_WAITING)
        if self._flight.under_way or self._clock() - self._tried_at >= RETRY_S:
            self._flight.join()

    @property
    def _age(self) -> float:
        return self._clock() - self._fetched_at

    def _current(self, kid: str | None, algorithm: str) -> Key | None:
        return None if self._keys is None else self._keys.find(kid, algorithm)

    def _refresh(self) -> None:
        self._tried_at = self._clock()
        try:
            self._keys = self._fetch()
        except NoKeys as failure:
            left = KEPT_S - self._age
            then = f"those it gave before count for {left:.0f} s more" if left > 0 else "nobody gets in"
            _log.error("the provider's keys cannot be had: %s; %s", failure, then)
        else:
            self._fetched_at = self._clock()
