"""The listener as a source of callers: every program that anything inside wants to run comes here first."""

from __future__ import annotations

import errno

from execserver.zygote.supervision.desk import HELD_AT_ONCE
from execserver.zygote.supervision.trapped import Trapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.syscalls import Kernel
    from execserver.zygote.supervision.complaints import Complaints
    from execserver.zygote.supervision.desk import Desk
    from execserver.zygote.supervision.notify import Listener, Notification
    from execserver.zygote.supervision.trapped_exit import TrappedExit
    from execserver.zygote.supervision.watch import Watch


class Notified:
    """Takes notifications off a listener, which it owns, and brings them to the desk.

    The first `of_ours` are what builds the sandbox, if it is a program, and the shell: they may run.  While
    the desk is full notifications wait in the kernel.
    """

    def __init__(
        self,
        kernel: Kernel,
        listener: Listener,
        leave: TrappedExit,
        complaints: Complaints,
        desk: Desk,
        watch: Watch,
        of_ours: int = 1,
    ) -> None:
        self._kernel = kernel
        self._listener = listener
        self._leave = leave
        self._complaints = complaints
        self._desk = desk
        self._watch = watch
        self._followed: dict[int, Trapped] = {}
        self._of_ours = of_ours
        self._is_open = True
        self._is_over = False
        self._is_watched = False
        self.go_on()

    def go_on(self) -> None:
        """Listen, or do not, as the desk has room; to be called once per turn."""
        has_room = not self._desk.is_full and not self._complaints.is_full
        wanted = self._is_open and not self._is_over and has_room
        if wanted != self._is_watched:
            if wanted:
                self._watch.add(self._listener.descriptor, self._take)
            else:
                self._watch.drop(self._listener.descriptor)
            self._is_watched = wanted

    def close(self) -> None:
        """Listen no more: every later exec of what still lives fails."""
        if self._is_open:
            self._is_open = False
            self.go_on()
            self._listener.close()

    def _take(self) -> None:
        try:
            notification = self._listener.receive()
        except OSError as error:
            if error.errno != errno.EBADF:
                self.close()  # nobody is left who could ask
            return
        if notification is None:
            # Until the last of them is reaped the descriptor would stay ready, with nothing to receive.
            self._is_over = self._listener.is_over()
            return
        if self._of_ours:
            self._of_ours -= 1
            self._listener.carry_on(notification.id)
            return
        self._bring(notification)

    def _bring(self, notification: Notification) -> None:
        trapped = Trapped(self._kernel, self._listener, self._leave, self._complaints, notification)
        execution = trapped.read()
        if execution is None:
            return
        before = self._followed.pop(trapped.tid, None)
        if before is not None and before.is_interrupted:
            # On kernels before 5.19 a signal ends the wait, and the thread begins again.
            if before.ask_again(trapped):
                self._followed[trapped.tid] = before
                return
            self._desk.abandon(before)
        self._desk.arrive(trapped, execution)
        if trapped.alive_fd >= 0:
            self._remember(trapped)

    def _remember(self, trapped: Trapped) -> None:
        if len(self._followed) > 2 * HELD_AT_ONCE:
            self._followed = {tid: one for tid, one in self._followed.items() if one.alive_fd >= 0}
        self._followed[trapped.tid] = trapped
