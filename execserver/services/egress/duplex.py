"""Carries what goes both ways in small pieces with one greenlet, as most tunnels need it.

Each piece is passed on as soon as the event loop says that it is there, and nobody is waited for.  What would
have to wait (a receiver that does not read, a first message that is not complete), and a stream that the
kernel moves better, is left to the caller as it is then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import gevent
from gevent.hub import get_hub

if TYPE_CHECKING:
    from execserver.services.egress.ends import End

_READY_READ = 1


class Direction(Protocol):
    """One direction of a tunnel."""

    ended: bool
    broken: bool
    moved: int  # bytes so far

    @property
    def sock(self) -> End:
        """Where the bytes come from."""

    def step(self, *, is_last: bool) -> bool:
        """Pass on what is there, or the end, without waiting; return whether nothing is left to pass on.

        `is_last`: the other direction has ended, and who is told of an end sees it when all is closed.
        """

    def interrupt(self) -> None:
        """Have the other end of the source, and who reads from it, see an end."""


class Duplex:
    """Both directions of a tunnel; the sockets are the caller's, and nobody else waits for them meanwhile."""

    __slots__ = (
        "_down",
        "_hub",
        "_silence",
        "_silence_s",
        "_switch",
        "_up",
        "_watching_down",
        "_watching_up",
    )

    def __init__(self, up: Direction, down: Direction, silence_s: float) -> None:
        """Once one of the two has ended, the other one may be silent for `silence_s` seconds."""
        self._up = up
        self._down = down
        self._hub = hub = get_hub()
        self._silence_s = silence_s
        self._silence: Any = None  # a timer, once one has ended
        self._switch: Callable[..., object]  # while it carries
        self._watching_up: Any = hub.loop.io(up.sock.fileno(), _READY_READ)
        self._watching_down: Any = hub.loop.io(down.sock.fileno(), _READY_READ)

    def carry(self) -> bool:
        """Carry until both have ended or `up` is broken; return False if the caller has to go on."""
        # No frame holds it: one that a kill ends stays with the greenlet, which would hold itself.
        self._switch = gevent.getcurrent().switch
        try:
            self._watching_up.start(self._switch, self._up)
            self._watching_down.start(self._switch, self._down)
            return self._steps()
        finally:
            del self._switch
            self._watching_up.close()  # which stops it
            self._watching_down.close()
            if self._silence is not None:
                self._silence.close()

    def _steps(self) -> bool:
        up, down, wait = self._up, self._down, self._hub.switch
        way: Direction | None = up  # its first bytes are often there already
        moved = 0
        while True:
            if way is None:  # the time of silence is over
                if self._left.moved == moved:
                    return True
                moved = self._left.moved
            elif not way.step(is_last=up.ended or down.ended):
                return False
            elif way.ended:
                if up.broken or (up.ended and down.ended):
                    return True
                self._one_has_ended(way)
                moved = self._left.moved
            way = wait()

    def _one_has_ended(self, way: Direction) -> None:
        if way.broken:
            self._up.interrupt()
        (self._watching_up if way is self._up else self._watching_down).stop()
        self._silence = self._hub.loop.timer(self._silence_s, self._silence_s)
        self._silence.start(self._switch, None)

    @property
    def _left(self) -> Direction:
        return self._down if self._up.ended else self._up
