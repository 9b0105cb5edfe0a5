"""One zygote as the server sees it: its socket, what was asked and not answered, and its children.

Many requests may be in flight; answers find their request by id.  One greenlet reads the records and calls
the children's exit callbacks.  A link is ACTIVE, then perhaps RETIRED (a start hung: its children live on,
it gets no new work), and ends as LOST (the zygote is gone) or CLOSED (this side ended it; the zygote ends
its descendants).
"""

from __future__ import annotations

import _socket
import enum
import errno
import os
import signal
import time
from collections.abc import Callable, Sequence

import gevent
from gevent.event import AsyncResult, Event
from gevent.hub import get_hub

from execserver.core.spawn_errors import starter_lost
from execserver.protocol.errors import InternalError
from execserver.services.child import Child
from execserver.zygote.channel import receive_record, send_record
from execserver.zygote.groups import signal_members, zombie_status
from execserver.zygote.launch import ZygoteProcess
from execserver.zygote.records import (
    Begun,
    Exited,
    Failed,
    Record,
    Signalled,
    SignalRequest,
    SpawnRequest,
    Started,
    WorkerRequest,
    decode,
    encode,
)

_READ = 1  # event mask of gevent's io watchers
_SIGKILL = 9
_FULL_PAUSE_S = 0.001
_LOOK_INTERVAL_S = 0.1
_SIGNAL_TIMEOUT_S = 1.0  # a zygote that hangs in a start cannot signal; then this process does it


class LinkState(enum.Enum):
    """How far a link's life has gone."""

    ACTIVE = enum.auto()
    RETIRED = enum.auto()
    CLOSED = enum.auto()
    LOST = enum.auto()


class AnswerTimeout(Exception):
    """The zygote did not answer in time."""


class ZygoteLink:
    """A connection to one zygote; owns the socket.

    `on_end(link)` is called in a greenlet of the link once the socket has ended, with the children that had
    not exited still in `children`.
    """

    def __init__(self, process: ZygoteProcess, on_end: Callable[[ZygoteLink], None]) -> None:
        self.pid = process.pid
        self.state = LinkState.ACTIVE
        self.children: dict[int, Child] = {}
        self._sock = _socket.socket(fileno=process.sock_fd)
        self._on_end = on_end
        self._next_id = 1
        self._waiting: dict[int, AsyncResult[Record]] = {}
        self._beginning: dict[int, Event] = {}
        self._given_up: set[int] = set()
        self._reader = gevent.spawn(self._read)

    @property
    def hanging(self) -> bool:
        """True while a request is unanswered."""
        return bool(self._waiting or self._given_up)

    def next_id(self) -> int:
        """Return a fresh request id."""
        self._next_id += 1
        return self._next_id

    def begin_start(
        self,
        child: Child,
        request: SpawnRequest | WorkerRequest,
        descriptors: Sequence[int],
        patience_s: float,
    ) -> PendingStart:
        """Ask for a process; the descriptors stay the caller's.

        A socket that stays full for `patience_s` seconds raises AnswerTimeout, a lost zygote InternalError.
        """
        with gevent.Timeout(patience_s, AnswerTimeout):
            self._send(encode(request), descriptors)
        self.children[child.child_id] = child
        self._waiting[child.child_id] = AsyncResult()
        self._beginning[child.child_id] = begun = Event()
        return PendingStart(self, child, self._waiting[child.child_id], begun, request.deadline_ns)

    def end_start(self, child: Child, wanted: bool) -> None:
        """Forget a request for a process; an unwanted one is killed, also when it starts only later."""
        del self._waiting[child.child_id]
        self._begun(child.child_id)
        if not wanted and child.child_id in self.children:
            if child.pid:
                self.signal_soon(child, _SIGKILL)
            else:
                self._given_up.add(child.child_id)
        self._close_if_done()

    def signal_child(self, child: Child, signum: int) -> bool:
        """Signal the group the child leads or led; return whether anyone was reached.

        The zygote does it, and when it does not answer, this process.  Raises OSError when the kernel
        refuses.
        """
        if self.state is LinkState.ACTIVE:
            try:
                return self._ask_for_signal(child, signum)
            except AnswerTimeout:
                pass
        if self.state in (LinkState.CLOSED, LinkState.LOST):
            return False  # all of them are being killed
        return signal_members(signal.pidfd_send_signal, child.pid, self.pid, signum, child.exited)

    def retire(self) -> None:
        """Give this zygote no more work; it ends when its last child has ended.

        While its answer is overdue it reports no exits either, so this side looks for them.
        """
        if self.state is LinkState.ACTIVE:
            self.state = LinkState.RETIRED
            gevent.spawn(self._look_for_exits)

    def reactivate(self) -> None:
        """Give work again to a retired zygote that answers again."""
        self.state = LinkState.ACTIVE

    def signal_soon(self, child: Child, signum: int) -> None:
        """Send a signal request and wait for nothing; a full or ended socket loses it."""
        try:
            send_record(self._sock, encode(SignalRequest(0, child.child_id, signum)))
        except OSError:
            return

    def close(self) -> None:
        """Give the zygote its end of file, upon which it ends every descendant and then itself."""
        if self.state in (LinkState.ACTIVE, LinkState.RETIRED):
            self.state = LinkState.CLOSED
            self._sock.shutdown(_socket.SHUT_WR)

    def _ask_for_signal(self, child: Child, signum: int) -> bool:
        request = SignalRequest(self.next_id(), child.child_id, signum)
        result: AsyncResult[Record] = AsyncResult()
        self._waiting[request.request_id] = result
        try:
            with gevent.Timeout(_SIGNAL_TIMEOUT_S, AnswerTimeout):
                self._send(encode(request), ())
                answer = result.get()
        except InternalError:
            return False  # lost: all of them are being killed
        finally:
            del self._waiting[request.request_id]
            self._close_if_done()
        assert isinstance(answer, Signalled)
        if answer.errno not in (0, errno.ESRCH):
            raise OSError(answer.errno, os.strerror(answer.errno))
        return answer.delivered

    def _send(self, data: bytes, descriptors: Sequence[int]) -> None:
        while True:
            if self.state in (LinkState.CLOSED, LinkState.LOST):
                raise starter_lost()
            try:
                send_record(self._sock, data, descriptors)
                return
            except BlockingIOError:
                gevent.sleep(_FULL_PAUSE_S)  # rare, and no watcher must outlive the socket
            except (BrokenPipeError, ConnectionResetError):
                raise starter_lost() from None

    def _read(self) -> None:
        watcher = get_hub().loop.io(self._sock.fileno(), _READ)
        try:
            while True:
                try:
                    received = receive_record(self._sock)
                except BlockingIOError:
                    get_hub().wait(watcher)
                    continue
                if received is None:
                    break
                self._take(decode(received[0]))
        finally:
            watcher.stop()
            watcher.close()
            self._end()

    def _take(self, record: Record) -> None:
        if isinstance(record, Exited):
            self._take_exit(record)
        elif isinstance(record, Begun):
            self._begun(record.request_id)
        elif isinstance(record, Started | Failed):
            self._begun(record.request_id)
            self._take_start(record)
        elif isinstance(record, Signalled):
            self._answer(record.request_id, record)

    def _take_start(self, record: Started | Failed) -> None:
        child = self.children[record.request_id]
        if isinstance(record, Failed):
            del self.children[record.request_id]
        else:
            child.pid = record.pid
        if record.request_id in self._given_up:
            self._given_up.discard(record.request_id)
            if isinstance(record, Started):
                self.signal_soon(child, _SIGKILL)
        self._answer(record.request_id, record)
        self._close_if_done()

    def _take_exit(self, record: Exited) -> None:
        child = self.children.pop(record.child_id, None)
        if child is not None:  # else its exit was seen while the zygote hung
            child.set_exited(record.status, record.survivors)
        self._close_if_done()

    def _begun(self, request_id: int) -> None:
        begun = self._beginning.pop(request_id, None)
        if begun is not None:
            begun.set()

    def _answer(self, request_id: int, record: Record) -> None:
        result = self._waiting.get(request_id)
        if result is not None:
            result.set(record)

    def _look_for_exits(self) -> None:
        while self.state is LinkState.RETIRED and self.hanging:
            for child in [child for child in self.children.values() if child.pid]:
                status = zombie_status(child.pid, self.pid)
                if status is not None:
                    self._take_exit(Exited(child.child_id, child.pid, status))
            gevent.sleep(_LOOK_INTERVAL_S)

    def _close_if_done(self) -> None:
        if self.state is LinkState.RETIRED and not self.children and not self.hanging:
            self.close()

    def _end(self) -> None:
        if self.state is not LinkState.CLOSED:
            self.state = LinkState.LOST
        self._sock.close()
        for result in self._waiting.values():
            result.set_exception(starter_lost())
        for request_id in list(self._beginning):
            self._begun(request_id)
        self._on_end(self)


class PendingStart:
    """A start that was asked for; exactly one of `accept` and `abandon` ends it."""

    def __init__(
        self, link: ZygoteLink, child: Child, result: AsyncResult[Record], begun: Event, deadline_ns: int
    ) -> None:
        self.link = link
        self._begun = begun
        self._child = child
        self._result = result
        self._deadline_ns = deadline_ns

    def begun_within(self, seconds: float) -> bool:
        """Wait until the zygote has done its part, be it that the start failed; return whether it has.

        Only the sandbox is still being made then, if there is one.
        """
        return bool(self._begun.wait(seconds))

    def answered_within(self, seconds: float) -> bool:
        """Wait for the answer; return whether it is there, be it that there will be none."""
        self._result.wait(seconds)
        return self._result.ready()

    def answer(self) -> Failed | None:
        """Return None once the process runs, else why it does not.

        No answer until the deadline raises AnswerTimeout, a lost zygote InternalError.
        """
        if not self.answered_within(max(0.0, (self._deadline_ns - time.monotonic_ns()) / 1e9)):
            raise AnswerTimeout
        answer = self._result.get()
        return answer if isinstance(answer, Failed) else None

    def accept(self) -> Child:
        """Take the process."""
        self.link.end_start(self._child, wanted=True)
        return self._child

    def abandon(self) -> None:
        """Want no process any more: one that runs, or starts after all, is killed."""
        self.link.end_start(self._child, wanted=False)
