"""Refusal messages: an intercepted process learns on its stderr why it may not run a program.

The descriptor is a copy of the process's own and is written to as it is.  To open it again would use the
rights of the supervisor, even if the process holds a device with O_PATH only.  The process shares its flags,
so it cannot be made non-blocking; and whoever else holds a lock of the pipe or file decides how long a write
takes.  So a child with nothing else open writes, and is abandoned after PATIENCE_S.

At most AT_ONCE children write at a time; other messages wait in order.  Abandoned children that hang in the
kernel and have not ended still count: beyond MOST_STUCK of them no message is written any more.
"""

from __future__ import annotations

import os
import select
from collections import deque

from execserver.sandbox.kernel import privileges

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.zygote.supervision.event_loop import EventLoop

    Then = Callable[[], None]

AT_ONCE = 16
MOST_WAITING = 256  # beyond this the exec source brings no further caller
MOST_STUCK = 64
PATIENCE_S = 1.0
_SIGKILL = 9


class RefusalMessages:
    """The refusal messages that are being written, and those that wait."""

    def __init__(self, kernel: Kernel, loop: EventLoop) -> None:
        self._kernel = kernel
        self._loop = loop
        self._waiting: deque[tuple[int, bytes, Then]] = deque()
        self._saying: dict[int, Then] = {}
        self._stuck: set[int] = set()

    @property
    def is_full(self) -> bool:
        """True while the exec source should bring no caller, since it might have to be refused."""
        return len(self._waiting) >= MOST_WAITING

    def say(self, descriptor: int, text: bytes, then: Then) -> None:
        """Write a text to `descriptor`, a copy that is closed here, and call `then` once, perhaps at once.

        The text is lost where the pipe, terminal or socket is full or the descriptor not open for writing.
        """
        self._waiting.append((descriptor, text, then))
        self._go_on()

    def ended(self, pid: int) -> None:
        """Take the end of a child; one that is not of this object is no error."""
        self._stuck.discard(pid)
        self._settle(pid)

    def _go_on(self) -> None:
        while self._waiting and len(self._saying) < AT_ONCE:
            descriptor, text, then = self._waiting.popleft()
            pid = self._start(descriptor, text)
            # The child has its copy.  One here would keep the command's pipe from ending.
            os.close(descriptor)
            if pid:
                self._saying[pid] = then
                self._loop.after(PATIENCE_S, self._give_up_later(pid, then))
            else:
                then()  # refused without a message, rather than not refused

    def _start(self, descriptor: int, text: bytes) -> int:
        """Start a child that writes; return 0 if there can be none."""
        if len(self._stuck) >= MOST_STUCK:
            return 0
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            return 0
        if pid == 0:
            # A fork that only makes system calls: nothing else of the supervisor runs in it.
            try:
                _write(self._kernel, parent, descriptor, text)
            finally:
                os._exit(0)
        return pid

    def _give_up_later(self, pid: int, then: Then) -> Then:
        def give_up() -> None:
            # Else it has ended, and its number may be that of another child by now.
            if self._saying.get(pid) is then:
                os.kill(pid, _SIGKILL)
                # One that hangs in the kernel does not die of it.  It counts until it is reaped.
                self._stuck.add(pid)
                self._settle(pid)

        return give_up

    def _settle(self, pid: int) -> None:
        then = self._saying.pop(pid, None)
        if then is not None:
            then()
            self._go_on()


def _write(kernel: Kernel, parent: int, descriptor: int, text: bytes) -> None:
    """Write, in a child, without the capabilities that some files ask for only when they are written to."""
    privileges.die_with_parent(kernel)
    if os.getppid() != parent:
        return  # it had ended before; the kernel sends nothing for that
    os.dup2(descriptor, 0)
    # Among them is the listener: while a copy is open, its end is not seen when the supervisor dies.
    privileges.close_from(kernel, 1)
    privileges.empty_capabilities(kernel)
    poll = select.poll()
    poll.register(0, select.POLLOUT)
    if poll.poll(0):
        os.write(0, text)
