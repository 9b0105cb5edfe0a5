"""A sandbox root as a list of system calls: recorded once for a plan, replayed by each process that enters.

The list is what `Builder` asks of the kernel when everything goes well.  So a sandbox root is described in
one place, and each check of a file identity is a step of the list.  When a call has another result than the
recorded one, what was built is removed, and the caller takes the slow path: `enter_root` builds the root, or
says why it cannot be built.

Why record at all: of 7.2 ms CPU for a sandboxed `/bin/true` the kernel's part was 2.5.  The rest was the
interpreter, and the page faults of memory that it touches after a fork.  Replaying brought it to 5.3 ms.
"""

from __future__ import annotations

import os

from execserver.sandbox.identity import check_identity
from execserver.sandbox.kernel import mounts
from execserver.sandbox.kernel.privileges import close_from
from execserver.sandbox.plan import HIDDEN_DIRECTORY, HIDDEN_FILE, READ, ROOT_READ_ONLY, ROOT_WRITABLE, WRITE
from execserver.sandbox.rootfs.builder import DEVICES, Builder, put_device
from execserver.sandbox.rootfs.recording import Recording

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.kernel.namespaces import Limit
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.plan import Identity, Mount, SandboxPlan
    from execserver.sandbox.rootfs.recording import Recorded

_ROOTS = (ROOT_READ_ONLY, ROOT_WRITABLE)  # in an empty one, what has to be made depends on what is there
_KINDS = (READ, WRITE, HIDDEN_DIRECTORY, HIDDEN_FILE)
GIVEN_CONSOLE = b"/dev/console\0given"  # in the recorded calls, the place of the path of a start's terminal
_MOST_MOUNTS = 64  # a longer list would be much memory for little time saved


def can_be_recorded(kernel: Kernel, plan: SandboxPlan) -> bool:
    """Tell whether the sandbox root of a plan can be recorded; else each start takes the slow path."""
    return (
        plan.root in _ROOTS
        and len(plan.mounts) + len(plan.missing) <= _MOST_MOUNTS
        # Without an identity, the file type would have to be looked up while recording.
        and all(mount.kind in _KINDS and mount.identity is not None for mount in plan.mounts)
        # The mount point would have to be made.
        and not any(mount.path.startswith(b"/dev/") for mount in plan.mounts)
        # A recorded call must succeed, and binding a device that is missing fails.
        and all(os.path.exists(b"/dev/" + name) for name in DEVICES)
        # Before Linux 5.12 `OldMounts` reads the mount table between its calls.
        and mounts.available(kernel)
    )


class RecordedRoot:
    """The recorded way into the sandbox root of a plan.

    The process that replays it is alone in fresh namespaces.  It has the descriptors from 0 on, `taken` of
    them, open; all others are closed.  `limits` are as for `enter_root`, `settings` as for
    `Builder.processes`.  `tie`, `first` and `then` are recorded, too: what comes before everything else,
    before the sandbox root, and after it.
    """

    def __init__(
        self,
        kernel: Kernel,
        plan: SandboxPlan,
        limits: Sequence[Limit],
        settings: Sequence[bytes],
        taken: int,
        tie: Callable[[Kernel], None],
        first: Callable[[Kernel], None],
        then: Callable[[Kernel], None],
    ) -> None:
        self._kernel = kernel
        self._taken = taken
        self._covered: list[Identity] = []  # of this replay's mask targets, in the order of `_missing`
        self._missing = [missing.path for missing in plan.missing]
        recording = Recording(kernel, range(taken))
        tie(recording)
        self._tie = recording.take()
        # From here on the numbers of all descriptors are known: each call gets the lowest free one.
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
        # For the compiled init only.  What this opens it closes, so that all later descriptors have the same
        # numbers in a start without a terminal.
        before = recording.taken()
        put_device(recording, mounts.NewMounts(recording), self._dev, GIVEN_CONSOLE, b"console")
        for number in recording.taken() - before:
            recording.call("close", number)
        self._console = recording.take()
        # Each start has its own mask targets, so their identities are no part of the list: the step looks its
        # own up by index, in what `enter` was given.
        for index, path in enumerate(self._missing):
            builder.cover(path, self.check_cover, index)
        self._covers = recording.take()
        builder.finish()
        close_from(recording, taken)
        then(recording)
        close_from(recording, taken)
        self._end = recording.take()

    @property
    def parts(self) -> tuple[Recorded, ...]:
        """What is replayed, in this order: always but for the last but two, the console, and the covers."""
        return (
            *(self._tie, self._first, self._start, self._body),
            *(self._console, self._covers, self._end),
        )

    @property
    def missing(self) -> Sequence[bytes]:
        """The paths of the covers."""
        return self._missing

    def tie(self) -> None:
        """Replay what comes first of all; any descriptors may still be open.  Raises OSError."""
        self._tie.play()

    def enter(self, console: bytes, extra: Sequence[Mount]) -> bool:
        """Replay everything but `tie`; `console` and `extra` are as in `enter_root`.

        Returns False where the slow path has to be taken; nothing of the sandbox root is left then.  Raises
        OSError when something failed before the sandbox root or at its end, from where there is no way back.
        """
        self._first.play()
        self._covered = [mount.identity for mount in extra if mount.identity is not None]
        # Recorded are all mask targets or none.  Some can be left out: nobody inside could make these paths.
        if len(self._covered) != len(extra) or [mount.path for mount in extra] not in ([], self._missing):
            return False
        mask = os.umask(0)  # as in `enter_root`: the recorded modes are given in full
        try:
            if not self._build(console):
                return False
            self._end.play()
        finally:
            os.umask(mask)
        return True

    def check_cover(self, index: int, opened: int) -> None:
        """Be the step that checks a mask target of this replay.  Raises OSError."""
        check_identity(self._covered[index], opened)

    def _build(self, console: bytes) -> bool:
        try:
            self._start.play()
        except OSError:
            # Nothing is attached yet: attaching the root is the last call that can fail here.
            close_from(self._kernel, self._taken)
            return False
        try:
            self._body.play()
            if self._covered:
                self._covers.play()
            if console:
                put_device(self._kernel, mounts.NewMounts(self._kernel), self._dev, console, b"console")
        except OSError:
            # The root covers the host's; the slow path needs that one again.
            mounts.leave(self._kernel, self._root)
            close_from(self._kernel, self._taken)
            return False
        return True
