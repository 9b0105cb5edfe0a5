"""A view as a list of system calls, made once for a plan and played by each process that enters it.

The list is what `Builder` asks of the kernel when everything goes well, so there is one description of a view
only, and each check of an identity is a step of it.  When something does not go as written down, what was
built is taken away again, and the builder does it with care, or says why it cannot be done.
"""

from __future__ import annotations

import os

from execserver.sandbox import mounts
from execserver.sandbox.identity import check_identity
from execserver.sandbox.plan import HIDDEN_DIRECTORY, HIDDEN_FILE, READ, ROOT_READ_ONLY, ROOT_WRITABLE, WRITE
from execserver.sandbox.privileges import close_from
from execserver.sandbox.recording import Recording
from execserver.sandbox.view import DEVICES, Builder, put_device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.namespaces import Limit
    from execserver.sandbox.plan import Identity, Mount, ViewPlan
    from execserver.sandbox.syscalls import Kernel

_ROOTS = (ROOT_READ_ONLY, ROOT_WRITABLE)  # in an empty one what has to be made depends on what is there
_KINDS = (READ, WRITE, HIDDEN_DIRECTORY, HIDDEN_FILE)
_MOST_MOUNTS = 64  # a list for each of thousands would be memory for little


def can_be_prepared(kernel: Kernel, plan: ViewPlan) -> bool:
    """Tell whether the view of a plan can be written down."""
    return (
        plan.root in _ROOTS
        and len(plan.mounts) + len(plan.missing) <= _MOST_MOUNTS
        and all(mount.kind in _KINDS and mount.identity is not None for mount in plan.mounts)
        # The mount point would have to be made.
        and not any(mount.path.startswith(b"/dev/") for mount in plan.mounts)
        and all(os.path.exists(b"/dev/" + name) for name in DEVICES)
        and mounts.available(kernel)
    )


class PreparedView:
    """The way into the view of a plan.

    Who plays it is alone in fresh namespaces and has the descriptors from 0 on, `taken` of them, open; others
    are closed.  `limits` are as for `enter_view`, `settings` as for `Builder.processes`.  `tie`, `first` and
    `then` are recorded too: what comes before everything, before the view, and after it.
    """

    def __init__(
        self,
        kernel: Kernel,
        plan: ViewPlan,
        limits: Sequence[Limit],
        settings: Sequence[bytes],
        taken: int,
        tie: Callable[[Kernel], None],
        first: Callable[[Kernel], None],
        then: Callable[[Kernel], None],
    ) -> None:
        self._kernel = kernel
        self._taken = taken
        self._covered: list[Identity] = []
        self._missing = [missing.path for missing in plan.missing]
        recording = Recording(kernel, range(taken))
        tie(recording)
        self._tie = recording.take()
        close_from(recording, taken)
        first(recording)
        self._first = recording.take()
        builder = Builder(recording, show_outside=False)
        builder.begin(plan.root)
        self._root = builder.root
        self._start = recording.take()
        builder.devices()
        builder.processes(limits, settings)
        for mount in plan.mounts:
            builder.mount(mount)
        self._dev = builder.dev
        self._body = recording.take()
        for index, path in enumerate(self._missing):
            builder.cover(path, self._check_cover, index)
        self._covers = recording.take()
        builder.finish()
        close_from(recording, taken)
        then(recording)
        close_from(recording, taken)
        self._end = recording.take()

    def tie(self) -> None:
        """Do what comes first of all, while any descriptors are open.  Raises OSError."""
        self._tie.play()

    def enter(self, console: bytes, extra: Sequence[Mount]) -> bool:
        """Do all of it, with mounts on top and a terminal as in `enter_view`.

        Returns False, with nothing of the view left, where it has to be built with care.  Raises OSError if
        something failed before it or at the end, from where there is no way back.
        """
        self._first.play()
        self._covered = [mount.identity for mount in extra if mount.identity is not None]
        if len(self._covered) != len(extra) or [mount.path for mount in extra] not in ([], self._missing):
            return False
        mask = os.umask(0)
        try:
            if not self._build(console):
                return False
            self._end.play()
        finally:
            os.umask(mask)
        return True

    def _check_cover(self, index: int, opened: int) -> None:
        check_identity(self._covered[index], opened)

    def _build(self, console: bytes) -> bool:
        try:
            self._start.play()
        except OSError:
            close_from(self._kernel, self._taken)
            return False
        try:
            self._body.play()
            if self._covered:
                self._covers.play()
            if console:
                put_device(self._kernel, mounts.NewMounts(self._kernel), self._dev, console, b"console")
        except OSError:
            mounts.leave(self._kernel, self._root)
            close_from(self._kernel, self._taken)
            return False
        return True
