"""A spare that waits to become an exec supervisor, with a spare init of its own for the call's sandbox.

Forking the zygote, copying the pages that a supervisor writes to, and making namespaces are half of a short
call.  A supervisor shares the host's mounts, and gets rules, folder and mask targets with its start, so it
does not grow old; only its spare init does.  It ends by itself after IDLE_S.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the plain calls, without enumerations
import os
import select

from execserver.zygote.confine.child import KEPT
from execserver.zygote.confine.spare import SOCKET, Spare
from execserver.zygote.confine.spare_init import SpareInit

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Sequence

    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.rootfs.compiled import CompiledRoot
    from execserver.zygote.confine.back_end import BackEnd
    from execserver.zygote.confine.plan_cache import PlanCache
    from execserver.zygote.confine.spare import Become
    from execserver.zygote.supervision.watched_template import WatchedTemplate

IDLE_S = 300
_WHILE_IT_WAITED = frozenset((1, 2, 3, 15, 17))  # what the zygote, and so the spare, blocks


class SpareSupervisor(Spare):
    """The zygote's side of it."""

    def __init__(self, kernel: Kernel, become: Become) -> None:
        super().__init__(kernel, become, sibling=False)

    def take(self, start: bytes, report: int, descriptors: Sequence[int]) -> int:
        """Have the spare become the supervisor of a start in this process's folder; return its pid, or 0."""
        if not self.is_there:
            return 0
        folder = os.open(b".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return self.hand_over(start, [report, folder, *descriptors], IDLE_S)
        finally:
            os.close(folder)

    def _received(self, sock: _socket.socket) -> tuple[bytes, list[int]] | None:
        poll = select.poll()
        poll.register(SOCKET, select.POLLIN)
        received = super()._received(sock) if poll.poll(IDLE_S * 1000) else None
        # A signal to all processes of the service was for the calls of that time.
        while received is not None and _signal.sigtimedwait(_WHILE_IT_WAITED, 0) is not None:
            pass
        return received


class Inits:
    """The spare init of a waiting supervisor, which may make one; its owner closes it.

    The compiled `template` makes it where it can, and owns it then.
    """

    def __init__(self, kernel: Kernel, become: Become, template: WatchedTemplate) -> None:
        self._kernel = kernel
        self._become = become
        self.template = template
        self._spare: SpareInit | None = None
        self._start = b""

    @property
    def below(self) -> int:
        """The number below which descriptors have to stay open."""
        spare = [] if self._spare is None else self._spare.descriptors
        return max(*spare, self.template.descriptor, -1) + 1

    def make(self, back_end: BackEnd, root: CompiledRoot | None, plans: PlanCache, example: bytes) -> None:
        """Make one for starts like the example, if that is of use; `root` is what a compiled one plays."""
        # The questions get this number, and what is opened from here on stays.
        number = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        assert number == KEPT
        if root is not None:
            self.template.make_spare(root, back_end.flags)
        elif back_end.recorded is not None:
            self._spare = SpareInit(self._kernel, self._become, sibling=False)
            self._spare.make(back_end.flags, plans.all_recorded(), example)

    def serve(self, start: bytes) -> None:
        """Note the start for which it is taken, if at all."""
        self._start = start

    def take(self, back_end: BackEnd, descriptors: Sequence[int]) -> int:
        """Have it become the sandbox init of that start; return its pid, or 0 if it cannot be used."""
        spare, self._spare = self._spare, None
        if spare is None:
            return 0
        try:
            if not self._start or back_end.recorded is None:
                return 0
            return spare.take(back_end.flags, back_end.recorded, self._start, descriptors)
        finally:
            spare.close()
