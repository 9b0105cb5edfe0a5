"""Carries what goes both ways in small pieces with one greenlet, as most tunnels need it.

Each piece is passed on as soon as the event loop says that it is there, and nobody is waited for.  What would
have to wait (a receiver that does not read, a first message that is not complete), and a stream that the
kernel moves better, is left to the caller as it is then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import gevent
from gevent.hub import get_hub

if TYPE_CHECKING:
    from gevent import socket

_READY_READ = 1


class Direction(Protocol):
    """One direction of a tunnel."""

    ended: bool
    broken: bool
    moved: int  # bytes so far

    @property
    def sock(self) -> socket.socket:
        """Where the bytes come from; it does not wait while they are carried here."""

    def step(self) -> bool:
        """Pass on what is there, or the end, without waiting; return whether nothing is left to pass on."""

    def interrupt(self) -> None:
        """Have the other end of the source, and who reads from it, see an end."""


class Duplex:
    """Both directions of a tunnel; the sockets are the caller's, and nobody else waits for them meanwhile."""

    __slots__ = ("_down", "_hub", "_silence", "_switch", "_up", "_watchers")

    def __init__(self, up: Direction, down: Direction, silence_s: float) -> None:
        """Once one of the two has ended, the other one may be silent for `silence_s` seconds."""
        self._up = up
        self._down = down
        self._hub = get_hub()
        self._switch: Callable[..., object]  # while it carries
        loop = self._hub.loop
        self._watchers = {way: loop.io(way.sock.fileno(), _READY_READ) for way in (up, down)}
        self._silence = loop.timer(silence_s, silence_s)

    def carry(self) -> bool:
        """Carry until both have ended or `up` is broken; return False if the caller has to go on."""
        # No frame holds it: one that a kill ends stays with the greenlet, which would hold itself.
        self._switch = gevent.getcurrent().switch
        try:
            for way, watcher in self._watchers.items():
                way.sock.settimeout(0.0)
                watcher.start(self._switch, way)
            return self._steps()
        finally:
            del self._switch
            for way, watcher in self._watchers.items():
                watcher.stop()
                watcher.close()
                way.sock.settimeout(None)
            self._silence.stop()
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
            elif not way.step():
                return False
            elif way.ended:
                if up.broken or (up.ended and down.ended):
                    return True
                if way.broken:
                    up.interrupt()
                self._watchers[way].stop()
                self._silence.start(self._switch, None)
                moved = self._left.moved
            way = wait()

    @property
    def _left(self) -> Direction:
        return self._down if self._up.ended else self._up
