"""When the client stops reading: the rule of `flow_rules`, for greenlets.

Without patience: nothing is dropped for a greenlet that is slow, such as one whose own output nobody takes.
"""

from __future__ import annotations

import gevent
from gevent.event import Event
from greenlet import getcurrent, greenlet

from execserver.client.rules import flow_rules
from execserver.client.rules.flow_rules import RECHECK_SECONDS, Waiting


class Inlet(flow_rules.Inlet[greenlet]):
    """What one consumer has not taken yet."""

    __slots__ = ()

    def read_by_caller(self) -> None:
        """Note that the current greenlet takes something."""
        self.read_by(getcurrent())


class Gate(flow_rules.FlowRule[greenlet]):
    """Decides whether a connection's reader may read the next message."""

    def __init__(self, limit: int, hard_limit: int) -> None:
        super().__init__(limit, hard_limit)
        self._changed = Event()

    def is_over(self, party: greenlet) -> bool:
        """See `FlowRule`."""
        return party.dead

    def wake(self) -> None:
        """See `FlowRule`."""
        self._changed.set()

    def waiting(self) -> Waiting[greenlet]:
        """Return a context manager; inside, the current greenlet counts as waiting for the server."""
        return Waiting(self, getcurrent())

    def hold_back(self) -> None:
        """Count a message; block the connection's reader while it must stop, let others run now and then."""
        if not self.is_due():
            return
        # Reading from a socket that always has data never waits, so no consumer would run.
        gevent.sleep(0)
        for _ in self.stops():
            self._changed.clear()
            self._changed.wait(RECHECK_SECONDS)
