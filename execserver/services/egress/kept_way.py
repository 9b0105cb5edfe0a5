"""The connection to a server over which the next request of the same client may go, too.

It is for the same host and port only, and of no other client: whatever a server makes of it, it can answer
nobody but who has asked it before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from execserver.services.egress.judging import Way


class KeptWay:
    """None or one, which this owns until it is taken."""

    __slots__ = ("_key", "_way")

    def __init__(self) -> None:
        self._key: object = None
        self._way: Way | None = None

    def keep(self, key: object, way: Way) -> None:
        """Keep a connection of which nothing is expected any more."""
        self.close()
        self._key, self._way = key, way

    def holds(self, way: Way) -> bool:
        """Return whether it is this one that is kept."""
        return self._way is way

    def take(self, key: object) -> Way | None:
        """Return the connection if it is for this key and silent, to the caller; else close it."""
        way = self._way
        if way is None or key != self._key or not _is_silent(way):
            self.close()
            return None
        self._way = None
        return way

    def close(self) -> None:
        """Close what is kept."""
        way, self._way = self._way, None
        if way is not None:
            way.sock.close()


def _is_silent(way: Way) -> bool:
    """Return whether a server has neither closed a connection nor said what nobody has asked it."""
    try:
        way.sock.recv_now(1)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False
