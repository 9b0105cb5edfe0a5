"""A tunnel: bytes go both ways between a process and its server until both have ended.

Each piece is passed on in the event loop's callback that tells of it, and nobody is waited for: most tunnels
need no greenlet.  What has to wait (a receiver that does not read, a first message that is not complete), and
a stream that the kernel moves better, goes on in greenlets (`streams.carry`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gevent.hub import get_hub

from execserver.eventloop.workers import Workers
from execserver.services.egress.streams import Direction, Incoming, carry

HALF_OPEN_S = 600.0  # one side has ended and the other is silent
_READY_READ = 1


class Tunnel:
    """Owns the sockets of both ends, from the beginning to `close`."""

    __slots__ = ("_down", "_ended", "_silence", "_silent_at", "_up", "_watchers", "_workers")

    def __init__(self, near: Incoming, far: Incoming) -> None:
        self._up = Direction(near, far.sock)
        self._down = Direction(far, near.sock)
        self._watchers: tuple[Any, ...] = ()
        self._silence: Any = None  # a timer, once one has ended
        self._silent_at = 0
        self._workers: Workers
        self._ended: Callable[[], None] | None = None

    def start(self, workers: Workers, ended: Callable[[], None]) -> None:
        """Begin to carry; `ended` is called once, when the sockets are closed."""
        self._workers, self._ended = workers, ended
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End at once; a second call does nothing."""
        ended, self._ended = self._ended, None
        if ended is not None:
            self._stop()
            self._up.sock.close()
            self._down.sock.close()
            ended()

    def _begin(self) -> None:
        up, down = self._up, self._down
        # The first bytes of a process are often there already.
        if down.has_begun or not up.step(is_last=False):
            self._leave()
            return
        loop = get_hub().loop
        watching_up = loop.io(up.sock.fileno(), _READY_READ)
        watching_down = loop.io(down.sock.fileno(), _READY_READ)
        self._watchers = watching_up, watching_down
        watching_up.start(self._step, up, down)
        watching_down.start(self._step, down, up)
        down.sock.keep_alive()  # only now: the first bytes have not waited for it
        if up.ended:
            self._one_has_ended(up, down)

    def _step(self, way: Direction, other: Direction) -> None:
        try:
            if not way.step(is_last=other.ended):
                self._leave()
            elif way.ended:
                self._one_has_ended(way, other)
        except BaseException:
            self.close()  # else the loop would call again and again
            raise

    def _one_has_ended(self, way: Direction, other: Direction) -> None:
        if other.ended or self._up.broken:
            self.close()
            return
        if way.broken:
            self._up.interrupt()
        watching_up, watching_down = self._watchers
        (watching_up if way is self._up else watching_down).stop()
        self._silent_at = other.moved
        self._silence = get_hub().loop.timer(HALF_OPEN_S, HALF_OPEN_S)
        self._silence.start(self._look, other)

    def _look(self, left: Direction) -> None:
        """Close if the direction that is left has been silent."""
        if left.moved == self._silent_at:
            self.close()
        self._silent_at = left.moved

    def _leave(self) -> None:
        """Leave the rest to greenlets, which may wait."""
        self._stop()
        self._workers.start(self._carry)

    def _carry(self) -> None:
        try:
            carry(self._up, self._down, HALF_OPEN_S)
        finally:
            self.close()

    def _stop(self) -> None:
        """Watch no longer."""
        for watcher in self._watchers:
            watcher.close()
        self._watchers = ()
        if self._silence is not None:
            self._silence.close()
            self._silence = None
