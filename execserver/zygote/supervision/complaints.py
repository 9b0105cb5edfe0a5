"""Saying to a trapped process's stderr why it may not run a program.

The descriptor is the process's own, copied, and written to as it is: opened once more it would be opened with
the rights of the supervisor, be it a mere path of a device.  Its flags are shared with the process, so it
cannot be kept from blocking; whoever else holds the pipe's or the file's lock decides how long a write takes.
So a child writes, which has nothing else open, and is given up after PATIENCE_S.

At most AT_ONCE children write at a time, others wait in their order.  Those given up that still have not
ended, for they hang in the kernel, count on: beyond MOST_STUCK of them nothing is said any more.
"""

from __future__ import annotations

import os
import select
from collections import deque

from execserver.sandbox import privileges

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.sandbox.syscalls import Kernel
    from execserver.zygote.supervision.watch import Watch

    Then = Callable[[], None]

AT_ONCE = 16
MOST_WAITING = 256
MOST_STUCK = 64
PATIENCE_S = 1.0
_SIGKILL = 9


class Complaints:
    """What is being said, and what is still to be."""

    def __init__(self, kernel: Kernel, watch: Watch) -> None:
        self._kernel = kernel
        self._watch = watch
        self._waiting: deque[tuple[int, bytes, Then]] = deque()
        self._saying: dict[int, Then] = {}
        self._stuck: set[int] = set()

    @property
    def is_full(self) -> bool:
        """True while nobody should be brought who might have to be told something."""
        return len(self._waiting) >= MOST_WAITING

    def say(self, descriptor: int, text: bytes, then: Then) -> None:
        """Write a text to a copy of somebody's descriptor, which is closed, and call `then` once.

        A full pipe, terminal or socket loses it, and so does a descriptor that is not open for writing.
        """
        self._waiting.append((descriptor, text, then))
        self._go_on()

    def ended(self, pid: int) -> None:
        """Take the end of a child; one that wrote nothing here is no error."""
        self._stuck.discard(pid)
        self._settle(pid)

    def _go_on(self) -> None:
        while self._waiting and len(self._saying) < AT_ONCE:
            descriptor, text, then = self._waiting.popleft()
            pid = self._start(descriptor, text)
            os.close(descriptor)
            if pid:
                self._saying[pid] = then
                self._watch.after(PATIENCE_S, self._give_up_later(pid, then))
            else:
                then()

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
            try:
                _write(self._kernel, parent, descriptor, text)
            finally:
                os._exit(0)
        return pid

    def _give_up_later(self, pid: int, then: Then) -> Then:
        def give_up() -> None:
            if self._saying.get(pid) is then:  # else it has ended, and the number may be another's by now
                os.kill(pid, _SIGKILL)
                self._stuck.add(pid)
                self._settle(pid)

        return give_up

    def _settle(self, pid: int) -> None:
        then = self._saying.pop(pid, None)
        if then is not None:
            then()
            self._go_on()


def _write(kernel: Kernel, parent: int, descriptor: int, text: bytes) -> None:
    """In a child: write, with no right that is asked for only when something is written."""
    privileges.die_with_parent(kernel)
    if os.getppid() != parent:
        return
    os.dup2(descriptor, 0)
    privileges.close_from(kernel, 1)  # the listener among them, whose end others must see
    privileges.empty_capabilities(kernel)
    poll = select.poll()
    poll.register(0, select.POLLOUT)
    if poll.poll(0):
        os.write(0, text)
