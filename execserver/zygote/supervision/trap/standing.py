"""What a process may do, as far as a program outside could do more: compared with what the shell may.

A process that has given something up, or has gone elsewhere, gets its programs inside: they would have it
back outside.
"""

from __future__ import annotations

import os
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.zygote.supervision.trap.process_status import Status

# In those "for children" a process is only by itself until it executes or forks.
_NAMESPACES = (
    *(b"cgroup", b"ipc", b"mnt", b"net", b"pid", b"pid_for_children"),
    *(b"time_for_children", b"user", b"uts"),
)
# A process goes to another one of these only with CAP_SYS_ADMIN in its own user namespace, the new one if it
# makes one or enters one.  From a user namespace none leads back to the one around it.  So where nothing that
# the shell starts can have that capability, who is in the shell's user namespace is in all of its namespaces.
_ONLY_USER = (b"user",)
_CAP_SYS_ADMIN = 1 << 21
_PIECE_BYTES = 4096
_NAME_CHARACTERS = 26  # of a line in /proc/PID/limits; the lines are in the order of the numbers
# Hard limits that take rights away and end nobody halfway: a program outside gets those, too.
_HANDED_ON = frozenset((7, 8, 11, 12, 13, 14))
# Core dumps there are none outside; the other two limit nothing in any kernel that is supported.
_WITHOUT_EFFECT = frozenset((4, 5, 10))
_OPEN_FILES = 7
LEAST_OPEN_FILES = 256  # with fewer, a program may fail on what it opens


class Standing:
    """Identity, namespaces, control groups, filters and limits of a thread."""

    __slots__ = ("_filters", "_groups", "_ids", "_limits", "_namespaces", "_which")

    def __init__(self, tid: int, status: Status) -> None:
        """Read all but the namespaces.  Raises OSError."""
        self._ids, self._filters = status.ids, status.filters
        self._groups = _text(b"/proc/%d/cgroup" % tid)
        self._limits = _text(b"/proc/%d/limits" % tid)
        self._namespaces: list[bytes] = []
        self._which = _NAMESPACES if status.capabilities & _CAP_SYS_ADMIN else _ONLY_USER

    def find_namespaces(self, tid: int, shell: Standing | None = None) -> None:
        """Read those of a thread, as far as they may differ from the shell's.  Raises OSError."""
        which = self._which if shell is None else shell._which
        self._namespaces = [_namespace(tid, name) for name in which]

    def lowered_limits(self, shell: Standing) -> tuple[tuple[int, int], ...] | None:
        """Return the hard limits below the shell's, by resource; None if a program must run inside."""
        if (self._ids, self._filters) != (shell._ids, shell._filters):
            return None
        if (self._groups, self._namespaces) != (shell._groups, shell._namespaces):
            return None
        if self._limits == shell._limits:
            return ()
        found = []
        for number, (mine, theirs) in enumerate(zip(_hard(self._limits), _hard(shell._limits), strict=True)):
            if number in _WITHOUT_EFFECT or not _is_lower(mine, theirs):
                continue
            if number not in _HANDED_ON or (number == _OPEN_FILES and mine < LEAST_OPEN_FILES):
                return None  # it might end the program halfway, and without it the program would have more
            found.append((number, mine))
        return tuple(found)


def _hard(text: bytes) -> list[int]:
    lines = text.split(b"\n")[1:-1]
    words = (line[_NAME_CHARACTERS:].split()[1] for line in lines)
    return [resource.RLIM_INFINITY if word == b"unlimited" else int(word) for word in words]


def _is_lower(one: int, other: int) -> bool:
    return one != resource.RLIM_INFINITY and (other == resource.RLIM_INFINITY or one < other)


def _namespace(tid: int, name: bytes) -> bytes:
    try:
        return os.readlink(b"/proc/%d/ns/%b" % (tid, name))
    except FileNotFoundError:
        return b""  # a kernel without it; or the thread has ended, which is noticed


def _text(path: bytes) -> bytes:
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # The kernel writes each of these as one record, so a piece that is not full is the last one.
        text = piece = os.read(opened, _PIECE_BYTES)
        while len(piece) == _PIECE_BYTES:
            piece = os.read(opened, _PIECE_BYTES)
            text += piece
        return text
    finally:
        os.close(opened)
