"""How fast one process may have new names looked up: a name that is looked up leaves the machine.

A name server of the process's choice could receive data in the names of its domain.  Names that were looked
up before tell nothing new and are free.  No clock: the time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict

BURST = 256  # new names at once; a page of the web has some dozens
PER_SECOND = 8.0
REMEMBERED = 1024
LONGEST_S = 10.0  # that a name waits; one that would have to wait longer is not looked up


class TooManyNames(OSError):
    """So many new names wait already that this one is refused."""


class NamePace:
    """The look-ups of one process."""

    __slots__ = ("_known", "_since", "_tokens")

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()
        self._tokens = float(BURST)
        self._since = 0.0

    def delay(self, name: str, now: float) -> float:
        """Return after how many seconds a name may be looked up; asked once for each look-up.

        Raises TooManyNames.
        """
        if name in self._known:
            self._known.move_to_end(name)
            return 0.0
        tokens = min(BURST, self._tokens + (now - self._since) * PER_SECOND) - 1
        wait = max(0.0, -tokens / PER_SECOND)
        if wait > LONGEST_S:
            raise TooManyNames(11, "too many new names")
        self._tokens, self._since = tokens, now
        self._known[name] = None
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return wait
