"""One zygote as the server sees it: its socket, the requests without an answer, and its children.

Many requests may be in flight; an answer finds its request by id.  One greenlet reads the records and calls
the exit callbacks of the children.  A link is ACTIVE, then perhaps RETIRED (a start hung: the children live
on, the zygote gets no new work), or RELEASED (a program before this one has started it; it gets no new work
and ends when nobody is left), and ends as LOST (the zygote died) or CLOSED (this side ended it; the zygote
ends its descendants).
"""

from __future__ import annotations

import _socket
import enum
import errno
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import gevent
from gevent.event import AsyncResult, Event
from gevent.hub import get_hub

from execserver.core.spawn_errors import starter_lost
from execserver.protocol.errors import InternalError
from execserver.services.launch.child import Child
from execserver.zygote.channel import receive_record, send_record
from execserver.zygote.groups import signal_members, zombie_status
from execserver.zygote.launch import ZygoteProcess
from execserver.zygote.records import (
    Begun,
    Exited,
    Failed,
    Record,
    Release,
    Signalled,
    SignalRequest,
    SpawnRequest,
    Started,
    WorkerRequest,
    decode,
    encode,
)

if TYPE_CHECKING:
    from execserver.handover.carrier import Outgoing
    from execserver.handover.records import PackedLink

_READ = 1  # event mask of gevent's io watchers
_SIGKILL = 9
_FULL_PAUSE_S = 0.001
_LOOK_INTERVAL_S = 0.1
_SIGNAL_TIMEOUT_S = 1.0  # a zygote that hangs in a start cannot send signals; after that this process does


class LinkState(enum.Enum):
    """The state of a link."""

    ACTIVE = enum.auto()
    RETIRED = enum.auto()
    RELEASED = enum.auto()
    CLOSED = enum.auto()
    LOST = enum.auto()


class AnswerTimeout(Exception):
    """The zygote did not answer in time."""


class ZygoteLink:
    """A connection to one zygote; it owns the socket.

    `on_end(link)` is called in a greenlet of the link once the socket has ended.  Children that had not
    exited are still in `children` then.
    """

    socket_class: type[_socket.socket] = _socket.socket

    def __init__(self, process: ZygoteProcess, on_end: Callable[[ZygoteLink], None]) -> None:
        self.pid = process.pid
        self.state = LinkState.ACTIVE
        self.children: dict[int, Child] = {}  # by request id: unlike a pid, it is never given out again
        self._sock = self.socket_class(fileno=process.sock_fd)
        self._on_end = on_end
        self._next_id = 1
        self._waiting: dict[int, AsyncResult[Record]] = {}  # requests without an answer
        self._beginning: dict[int, Event] = {}  # starts whose own part the zygote has not finished
        self._given_up: set[int] = set()  # abandoned starts that may still succeed
        self._reader = gevent.spawn(self._read)

    def pack(self, out: Outgoing) -> PackedLink:
        """Return what `adopt` takes; not while the link is `hanging`."""
        from execserver.handover.records import PackedLink

        children = [(child.child_id, child.pid, child.tty) for child in self.children.values()]
        return PackedLink(self.pid, out.keep(self._sock.fileno()), self._next_id, children)

    def adopt(self, packed: PackedLink) -> None:
        """Take over the children of a program before this one, and release the zygote."""
        self.state = LinkState.RELEASED
        self._next_id = packed.next_id
        for child_id, pid, tty in packed.children:
            self.children[child_id] = Child.handed_over(child_id, pid, tty, self)
        try:
            send_record(self._sock, encode(Release()))
        except OSError:
            return  # it has ended, which is seen at once, or reads nothing and stays

    @property
    def hanging(self) -> bool:
        """True while any request has no answer."""
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
        """Request a process; the caller keeps its descriptors.

        Raises AnswerTimeout if the socket stays full for `patience_s` seconds, InternalError if the zygote is
        lost.
        """
        with gevent.Timeout(patience_s, AnswerTimeout):
            self._send(encode(request), descriptors)
        # No greenlet switch since the send, so the answer cannot have been read before these entries exist.
        self.children[child.child_id] = child
        self._waiting[child.child_id] = AsyncResult()
        self._beginning[child.child_id] = begun = Event()
        return PendingStart(self, child, self._waiting[child.child_id], begun, request.deadline_ns)

    def end_start(self, child: Child, wanted: bool) -> None:
        """Forget a request for a process; kill an unwanted process, even if it starts only later."""
        del self._waiting[child.child_id]
        self._begun(child.child_id)
        if not wanted and child.child_id in self.children:
            if child.pid:
                self.signal_soon(child, _SIGKILL)
            else:
                # The zygote cannot take back a start.  `_take_start` kills the process once it has a pid.
                self._given_up.add(child.child_id)
        self._close_if_done()

    def signal_child(self, child: Child, signum: int) -> bool:
        """Signal the process group that the child leads or led; return whether any process was reached.

        The zygote sends the signal; if it does not answer, this process does.  Raises OSError if the kernel
        refuses.
        """
        # The zygote first: while it signals it reaps nothing, so the group's number cannot be reused.
        if self.state in (LinkState.ACTIVE, LinkState.RELEASED):
            try:
                return self._ask_for_signal(child, signum)
            except AnswerTimeout:
                pass
        if self.state in (LinkState.CLOSED, LinkState.LOST):
            return False  # all descendants of the zygote are being killed
        return signal_members(signal.pidfd_send_signal, child.pid, self.pid, signum, child.exited)

    def retire(self) -> None:
        """Give this zygote no more work; it ends after its last child.

        A zygote that hangs reports no exits either, so this side looks for them in /proc.
        """
        if self.state is LinkState.ACTIVE:
            self.state = LinkState.RETIRED
            gevent.spawn(self._look_for_exits)

    def reactivate(self) -> None:
        """Give work again to a retired zygote that answers again."""
        self.state = LinkState.ACTIVE

    def signal_soon(self, child: Child, signum: int) -> None:
        """Send a signal request and wait for no answer; if the socket is full or has ended, it is lost."""
        try:
            # Nobody waits for request id 0, so its answer is dropped.
            send_record(self._sock, encode(SignalRequest(0, child.child_id, signum)))
        except OSError:
            return

    def close(self) -> None:
        """Send the zygote an end of file: it ends all its descendants and then itself."""
        if self.state in (LinkState.ACTIVE, LinkState.RETIRED, LinkState.RELEASED):
            self.state = LinkState.CLOSED
            # Only the sending direction: the zygote still reports the exits of what it kills.
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
            return False  # the zygote is lost: all its descendants are being killed
        finally:
            del self._waiting[request.request_id]
            self._close_if_done()
        assert isinstance(answer, Signalled)
        # ESRCH is no error here: the process ended on its own meanwhile.
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
                # Rare, so a short pause will do; a watcher might outlive the socket, which `_end` closes.
                gevent.sleep(_FULL_PAUSE_S)
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
        finally:  # also after a malformed record: a zygote that sends one cannot be trusted with the next
            watcher.stop()
            watcher.close()  # before `_end` closes the socket: no watcher may outlive its descriptor
            self._end()

    def _take(self, record: Record) -> None:
        if isinstance(record, Exited):
            self._take_exit(record)
        elif isinstance(record, Begun):
            self._begun(record.request_id)
        elif isinstance(record, Started | Failed):
            self._begun(record.request_id)  # only a sandboxed start sends `Begun` before its answer
            self._take_start(record)
        elif isinstance(record, Signalled):
            self._answer(record.request_id, record)

    def _take_start(self, record: Started | Failed) -> None:
        # The entry is there even for an abandoned start: only the answer removes it.
        child = self.children[record.request_id]
        if isinstance(record, Failed):
            del self.children[record.request_id]
        else:
            child.pid = record.pid
        if record.request_id in self._given_up:  # a client that gave up must not find a process running
            self._given_up.discard(record.request_id)
            if isinstance(record, Started):
                self.signal_soon(child, _SIGKILL)
        self._answer(record.request_id, record)
        self._close_if_done()

    def _take_exit(self, record: Exited) -> None:
        child = self.children.pop(record.child_id, None)
        if child is not None:  # else `_look_for_exits` took the exit while the zygote hung
            child.has_used(record.cpu_us, record.peak_kib)
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
                # The zygote has not reaped the child, so /proc still has its wait status.
                status = zombie_status(child.pid, self.pid)
                if status is not None:
                    self._take_exit(Exited(child.child_id, child.pid, status))
            gevent.sleep(_LOOK_INTERVAL_S)

    def _close_if_done(self) -> None:
        # A retired zygote would otherwise stay for ever: nothing else ends it before the server's end.
        if self.state is LinkState.RETIRED and not self.children and not self.hanging:
            self.close()

    def _end(self) -> None:
        if self.state is not LinkState.CLOSED:
            self.state = LinkState.LOST
        self._sock.close()
        for result in self._waiting.values():
            result.set_exception(starter_lost())
        for request_id in list(self._beginning):
            self._begun(request_id)  # wakes whoever holds the spawner's turn
        self._on_end(self)


class PendingStart:
    """A requested start; exactly one call of `accept` or `abandon` ends it."""

    def __init__(
        self, link: ZygoteLink, child: Child, result: AsyncResult[Record], begun: Event, deadline_ns: int
    ) -> None:
        self.link = link
        self._begun = begun
        self._child = child
        self._result = result
        self._deadline_ns = deadline_ns

    def begun_within(self, seconds: float) -> bool:
        """Wait until the zygote has finished its part, even if the start failed; return whether it has.

        A sandbox may still be under construction then, in its own process.
        """
        return bool(self._begun.wait(seconds))

    def answered_within(self, seconds: float) -> bool:
        """Wait for the answer; return True once it is there, or once it is certain that none will come."""
        self._result.wait(seconds)
        return self._result.ready()

    def answer(self) -> Failed | None:
        """Return None once the process runs, or the record that says why it does not.

        Raises AnswerTimeout without an answer at the deadline, InternalError if the zygote is lost.
        """
        if not self.answered_within(max(0.0, (self._deadline_ns - time.monotonic_ns()) / 1e9)):
            raise AnswerTimeout
        answer = self._result.get()
        return answer if isinstance(answer, Failed) else None

    def accept(self) -> Child:
        """Take over the process that was started."""
        self.link.end_start(self._child, wanted=True)
        return self._child

    def abandon(self) -> None:
        """Give up the start: a process that runs, or still starts later, is killed."""
        self.link.end_start(self._child, wanted=False)
