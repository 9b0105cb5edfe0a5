"""The queue for the standard input of one process.

Writes go out whole and in order.  What the pipe takes is written at once; the rest waits here.  At the limit
a write waits in `put` until there is room: its answer comes late, and nothing is dropped.  The queue owns and
closes the descriptor of a pipe; that of a terminal belongs to its pump, and the queue only writes to it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from gevent.event import Event
from gevent.hub import get_hub

if TYPE_CHECKING:
    from execserver.handover.carrier import Outgoing
    from execserver.handover.records import PackedInput

QUEUED_WRITES = 128  # as at the reference server, where a further one blocks the whole connection
QUEUED_BYTES = 4 * 1024 * 1024
_READY_WRITE = 2
Recorder = Callable[[], Callable[[bytes], None]]


class StdinQueue:
    """The writing side; `gone` is True once nothing can be written any more."""

    goes_straight = True  # what comes first is written without being queued

    def __init__(self, fd: int, *, owned: bool) -> None:
        self._fd = fd
        self._owned = owned
        self._queue: deque[memoryview] = deque()
        self._queued = 0
        self._watcher = get_hub().loop.io(fd, _READY_WRITE)
        self._waiting = False
        self._turns: deque[Event] = deque()  # writes that wait in `put`, first come first served
        self._granted = False  # one of them has been woken and has not queued its bytes yet
        self._expected = 0  # writes whose greenlets have not begun, and so have no turn
        self._finishing = False
        self.gone = False
        self.recorder: Recorder | None = None  # asked before each write, and told what was written

    @property
    def fd(self) -> int:
        """The descriptor, unless the queue is `gone`."""
        return self._fd

    @property
    def has_room(self) -> bool:
        """Return whether `put` would return at once."""
        # Not while others wait: a write that came later must not overtake theirs.
        return not self._expected and self._has_turn

    def expect(self) -> None:
        """Note a write whose greenlet begins later; that calls `arrived` and then `put`.

        Until then there is no room for what must come behind it: writes and `finish`.  Should the greenlet
        never begin, since its client is gone, they only take greenlets of their own.
        """
        self._expected += 1

    def arrived(self) -> None:
        """Note that the greenlet of an expected write has begun."""
        self._expected -= 1

    def put(
        self, data: bytes, still_wanted: Callable[[], bool] = lambda: True, write_id: str | None = None
    ) -> bool:
        """Queue bytes, waiting for room; return False if they are not wanted any more or nobody reads.

        `finish` still lets the writes through that wait already, but no later ones.  A greenlet that is
        killed while it waits gives up its place.  `still_wanted` is asked after the wait.
        """
        if self._finishing:
            return False
        if self._has_turn:
            return self._take(data, still_wanted, write_id)
        turn = Event()
        self._turns.append(turn)
        try:
            turn.wait()
            return self._take(data, still_wanted, write_id)
        finally:
            self._leave(turn)

    def put_at_once(self, data: bytes) -> None:
        """Do what `put` does while it `has_room`."""
        if data and not (self.gone or self._finishing):
            self._add(data)

    def finish(self) -> None:
        """Close once everything queued is written; the process then sees the end of its input."""
        self._finishing = True
        self._go_on()

    def close(self) -> None:
        """Drop what is queued, wake all waiting writes, and close the descriptor if it is owned."""
        if self.gone:
            return
        self.gone = True
        self._watcher.stop()  # before the close: the loop aborts on a watcher of a closed descriptor
        self._queue.clear()
        self._queued = 0
        if self._owned:
            os.close(self._fd)
        self._go_on()

    def pack(self, out: Outgoing) -> PackedInput:
        """Return what `restore` makes an equal queue of; writes that wait for room are asked for again."""
        from execserver.handover.records import PackedInput

        fd = -1 if self.gone else out.keep(self._fd) if self._owned else self._fd
        return PackedInput(fd, [bytes(each) for each in self._queue], self._finishing)

    def restore(self, packed: PackedInput) -> None:
        """Become the queue that was packed, and begin to write; called on a new one."""
        if packed.fd < 0:
            self.gone = True
            return
        self._queue.extend([memoryview(each) for each in packed.queue])
        self._queued = sum([len(each) for each in packed.queue])
        self._finishing = packed.finishing
        if packed.queue:
            self._wait_writable()
        else:
            self._go_on()

    @property
    def _has_turn(self) -> bool:
        return self.gone or self._finishing or not (self._turns or self._granted or self._full)

    @property
    def _full(self) -> bool:
        return len(self._queue) >= QUEUED_WRITES or self._queued >= QUEUED_BYTES

    def _take(self, data: bytes, still_wanted: Callable[[], bool], write_id: str | None) -> bool:
        if self.gone or not still_wanted():
            return False
        if data:
            self._add(data)
        return True

    def _add(self, data: bytes) -> None:
        written = 0
        if self.goes_straight and not self._queue and self.recorder is None:  # as nearly always
            try:
                written = os.write(self._fd, data)
            except BlockingIOError:
                pass
            except OSError:
                self._lost()
                return
            if written == len(data):
                return
        rest = memoryview(data)[written:]
        self._queue.append(rest)
        self._queued += len(rest)
        if not self._waiting:
            self._write()

    def _leave(self, turn: Event) -> None:
        if turn in self._turns:  # the greenlet was killed before its turn came
            self._turns.remove(turn)
        else:
            self._granted = False
        self._go_on()

    def _go_on(self) -> None:
        """Wake the first write that waits, if it can go on now; close after the last one."""
        # One at a time: each may fill the queue again.
        if self._granted:
            return
        if self._turns:
            if self.gone or not self._full:
                self._granted = True
                self._turns.popleft().set()
        elif self._finishing and not self._queue:
            self.close()

    def _write(self) -> None:
        try:
            self._pass_on()
        except BlockingIOError:
            self._wait_writable()
        except OSError:
            self._lost()
            return
        else:
            self._stop_waiting()
        self._go_on()

    def _lost(self) -> None:
        # EPIPE or EIO: no process will read it.  Later writes are accepted and dropped, as by the reference
        # server.
        self.close()

    def _pass_on(self) -> None:
        """Write until nothing is queued.  Raises BlockingIOError, OSError."""
        while self._queue:
            head = self._queue[0]
            took = None if self.recorder is None else self.recorder()
            written = os.write(self._fd, head)
            if took is not None:
                took(bytes(head[:written]))
            self._queued -= written
            if written == len(head):
                self._queue.popleft()
            else:
                self._queue[0] = head[written:]

    def _wait_writable(self) -> None:
        if not self._waiting:
            self._waiting = True
            self._watcher.start(self._write)

    def _stop_waiting(self) -> None:
        if self._waiting:
            self._waiting = False
            self._watcher.stop()
