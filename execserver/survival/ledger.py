"""What a server has, by name, in a journal: small things that change seldom.

Each put or drop is one record, so a reader has what was there before it or behind it, and nothing between.  A
journal that has grown to a few times what is left in it is written anew.  Standard library only.
"""

from __future__ import annotations

import struct

from execserver.survival.journal import Journal, records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Names begin with what they are of; behind that stands an id.
HEAD, SESSION, PROCESS, ZYGOTE, CHILD = b"head", b"session ", b"process ", b"zygote ", b"child "
KEY = struct.Struct("<Q")  # the value of a zygote

_PUT, _DROP = 1, 2
_END = b"\0"  # of a name
_LEAST_BYTES = 64 * 1024
_TIMES = 4


class Ledger:
    """Values by name.  `hold(fd)` puts a journal in the place of the one before it, for whoever reads it."""

    def __init__(self, hold: Callable[[int], None]) -> None:
        self._hold = hold
        self._values: dict[bytes, bytes] = {}
        self._live = 0  # bytes of names and values
        self._put_off = 0  # by how many bytes the journal may grow further: no descriptor was free
        self._journal: Journal | None = None  # nothing is written before `publish`

    def put(self, name: bytes, value: bytes) -> None:
        """Set the value of a name."""
        self._forget(name)
        self._values[name] = value
        self._live += len(name) + len(value)
        self._note(_PUT, name + _END + value)

    def drop(self, name: bytes) -> None:
        """Remove a name, if it is there."""
        if self._forget(name):
            self._note(_DROP, name)

    def publish(self) -> None:
        """Write everything anew, and let that be what counts.  Raises OSError, and changes nothing then."""
        journal = Journal()
        for name, value in self._values.items():
            journal.append(_PUT, name + _END + value)
        self._hold(journal.fd)
        if self._journal is not None:
            self._journal.close()
        self._journal = journal
        self._put_off = 0

    def _forget(self, name: bytes) -> bool:
        value = self._values.pop(name, None)
        if value is None:
            return False
        self._live -= len(name) + len(value)
        return True

    def _note(self, kind: int, payload: bytes) -> None:
        if self._journal is None:
            return
        self._journal.append(kind, payload)
        if self._journal.size > _LEAST_BYTES + _TIMES * self._live + self._put_off:
            try:
                self.publish()
            except OSError:
                self._put_off = self._journal.size


def read(fd: int) -> dict[bytes, bytes]:
    """Return the values of a journal by name."""
    values: dict[bytes, bytes] = {}
    for kind, payload in records(fd):
        name, _, value = payload.partition(_END)
        values.pop(name, None)
        if kind == _PUT:
            values[name] = value
    return values
