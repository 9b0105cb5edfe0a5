"""A spare in namespaces of its own, which waits to become a sandbox init.

Making namespaces takes a millisecond.  It has entered no sandbox root and looked at nothing that a start
looks at: it holds fresh namespaces, and a copy of the host's mounts.  So it is used only where no mount has
come or gone since its fork, for FRESH_S at most, and only with recorded calls that were known then.
"""

from __future__ import annotations

import os
import select

from execserver.zygote.confine.spare import Spare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.rootfs.recorded import RecordedRoot
    from execserver.zygote.confine.spare import Become

FRESH_S = 10.0


class MountChanges:
    """Tells whether a mount of this process's namespace has come or gone; owns a descriptor.

    Raises OSError where there is no /proc.
    """

    def __init__(self) -> None:
        self.descriptor = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLPRI)

    def are_there(self) -> bool:
        """Return whether there was a change since the last question, or since the beginning."""
        return bool(self._poll.poll(0))


class SpareInit(Spare):
    """The maker's side: a filter template, or an exec supervisor that is a spare itself."""

    def __init__(self, kernel: Kernel, become: Become, *, sibling: bool) -> None:
        super().__init__(kernel, become, sibling=sibling)
        self._flags = 0
        self._known: Sequence[RecordedRoot] = ()
        try:
            self._changes: MountChanges | None = MountChanges()
        except OSError:
            self._changes = None

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that it owns here."""
        table = [] if self._changes is None else [self._changes.descriptor]
        return table if self._socket is None else [*table, self._socket.fileno()]

    def make(self, flags: int, known: Sequence[RecordedRoot], example: bytes) -> None:
        """Fork a spare for starts with namespaces of these flags, and with one of these recorded roots.

        `example` are the bytes of a start.  Where it cannot be made, there is none.
        """
        self.drop()
        if self._changes is None:
            return
        self._changes.are_there()  # what comes from here on counts
        self._flags, self._known = flags, known
        self.fork(flags, example)

    def take(self, flags: int, recorded: RecordedRoot, start: bytes, descriptors: Sequence[int]) -> int:
        """Have the spare become the sandbox init of a start; return its pid, or 0 if it cannot be used."""
        is_known = flags == self._flags and any(one is recorded for one in self._known)
        if not is_known or self._are_changes():
            self.drop()
        return self.hand_over(start, descriptors, FRESH_S)

    def close(self) -> None:
        """End the spare, and close what is owned."""
        self.drop()
        if self._changes is not None:
            os.close(self._changes.descriptor)
            self._changes = None

    def _are_changes(self) -> bool:
        return self._changes is None or self._changes.are_there()
