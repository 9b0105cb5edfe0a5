"""The zygote's life: start what is asked, report who ended, and at the end of its socket end them all.

One thread, one socket, one signalfd, and a report of every sandbox being made.  The answer to a start is
always sent before the exit record of the same child.  Sending blocks while the server is busy; nothing is
queued here.
"""

from __future__ import annotations

import errno
import os
import select
import time

from execserver.zygote.channel import RecordLost, receive_record, send_record
from execserver.zygote.groups import has_members, signal_members
from execserver.zygote.reaper import end_all_children, own_children, reap_ended
from execserver.zygote.records import (
    STAGE_EXEC,
    Begun,
    Exited,
    Failed,
    RecordError,
    Signalled,
    SignalRequest,
    SpawnRequest,
    Started,
    WorkerRequest,
    decode,
    encode,
)
from execserver.zygote.spawn import SpawnFailure, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

    from execserver.zygote.confined import Confinement
    from execserver.zygote.libc import Libc
    from execserver.zygote.records import Record

_SIGKILL = 9
_SIGCHLD = 17
_POLITE_SIGNALS = (
    1,
    2,
    3,
    15,
)  # the server decides when to stop; a signal to a whole service must not race it
_IDLE_BEFORE_LOADING_MS = 100  # then the modules of sandboxes are loaded, so that no start waits for them
_RETRY_MS = 200
_LEADERLESS_KEPT = 256  # groups that outlived their leader; the oldest is forgotten beyond this


class Zygote:
    """What the zygote knows: its children by pid, and the groups that outlived their leader."""

    def __init__(
        self,
        sock: _socket.socket,
        libc: Libc,
        runtime_dir: bytes | None = None,
        confinement: Confinement | None = None,
    ) -> None:
        self._sock = sock
        self._libc = libc
        self._runtime_dir = runtime_dir
        self._children: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._leaderless: dict[int, int] = {}
        self._supervisors: set[int] = set()
        self._deserted = False  # a supervisor has ended, and what it left may have left something itself
        self._confinement = confinement
        self._retried = 0.0
        self._poll = select.poll()
        self._reports: dict[int, int] = {}  # of sandboxes being made, to their pids

    def run(self) -> None:
        """Serve until the server is gone, then kill and reap every descendant."""
        signals = self._libc.block_and_watch(_POLITE_SIGNALS, _SIGCHLD)
        self._poll.register(self._sock.fileno(), select.POLLIN)
        self._poll.register(signals, select.POLLIN)
        try:
            while True:
                ready = [descriptor for descriptor, _ in self._poll.poll(self._patience_ms())]
                if not ready and self._confinement is None:
                    self._confinement_at_need()
                self._retry_now_and_then()
                if signals in ready:
                    _drain(signals)
                    self._report_exits()
                for report in [report for report in ready if report in self._reports]:
                    self._hear(report)
                self._give_up_overdue()
                if self._sock.fileno() in ready and not self._serve_one():
                    break
        except (BrokenPipeError, ConnectionResetError):
            pass
        end_all_children()
        if self._confinement is not None:
            self._confinement.close()

    def _patience_ms(self) -> int | None:
        """Return how long to wait before idleness is put to use; None when there is nothing to do then."""
        if self._confinement is None:
            return _IDLE_BEFORE_LOADING_MS
        due = self._confinement.next_deadline_ns() if self._reports else 0
        left_ms = max(0, (due - time.monotonic_ns()) // 1_000_000) + 1 if due else None
        if not self._confinement.pending:
            return left_ms
        return _RETRY_MS if left_ms is None else min(left_ms, _RETRY_MS)

    def _retry_now_and_then(self) -> None:
        """Remove placeholders that other owners used before, also when there is always something to do."""
        if self._confinement is not None and self._confinement.pending:
            now = time.monotonic()
            if now - self._retried >= _RETRY_MS / 1000:
                self._retried = now
                self._confinement.retry()

    def _serve_one(self) -> bool:
        """Answer one record; return False at end of file."""
        try:
            received = receive_record(self._sock)
        except RecordLost as lost:
            self._send(Failed(lost.request_id, STAGE_EXEC, errno.EMFILE))
            return True
        if received is None:
            return False
        data, descriptors = received
        try:
            answer = self._answer(decode(data), descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._send(answer)
        return True

    def _answer(self, record: Record, descriptors: list[int]) -> Record:
        if isinstance(record, SpawnRequest | WorkerRequest):
            return self._start(record, descriptors)
        if isinstance(record, SignalRequest):
            return self._signal(record)
        raise RecordError(f"{record!r} is not for the zygote")

    def _started(self, request: SpawnRequest | WorkerRequest, descriptors: list[int]) -> int:
        if isinstance(request, WorkerRequest):
            return self._confinement_at_need().begin_worker(request, descriptors)
        if request.plan or request.refusal or request.seccomp or request.supervision:
            return self._confinement_at_need().begin(request, descriptors)
        return spawn(self._libc, request, descriptors)

    def _confinement_at_need(self) -> Confinement:
        """Load what sandboxes need: later than the first start, or while there is nothing else to do."""
        if self._confinement is None:
            from execserver.zygote.confined import Confinement

            self._confinement = Confinement(self._libc, runtime_dir=self._runtime_dir)
        return self._confinement

    def _start(self, request: SpawnRequest | WorkerRequest, descriptors: list[int]) -> Record:
        try:
            pid = self._started(request, descriptors)
        except SpawnFailure as failure:
            return _failed(request.request_id, failure)
        self._children[pid] = request.request_id
        self._pids[request.request_id] = pid
        if isinstance(request, SpawnRequest) and request.supervision:
            self._supervisors.add(pid)
        for child_id, group in list(self._leaderless.items()):
            if group == pid:  # the number was given out again, so the old group is over
                del self._leaderless[child_id]
        report = None if self._confinement is None else self._confinement.report_of(pid)
        if report is None:
            return Started(request.request_id, pid)
        self._reports[report] = pid
        self._poll.register(report, select.POLLIN)
        return Begun(request.request_id)

    def _hear(self, report: int) -> None:
        """Answer a start whose sandbox has said, or never will say, how it went."""
        assert self._confinement is not None
        pid = self._forget_report(report)
        self._answer_begun(pid, self._confinement.hear(pid))

    def _give_up_overdue(self) -> None:
        if self._confinement is not None and self._reports:
            for pid in self._confinement.give_up_overdue():
                self._forget_report(next(report for report, own in self._reports.items() if own == pid))
                self._answer_begun(pid, SpawnFailure(STAGE_EXEC, errno.ETIMEDOUT))

    def _forget_report(self, report: int) -> int:
        self._poll.unregister(report)
        return self._reports.pop(report)

    def _answer_begun(self, pid: int, failure: SpawnFailure | None) -> None:
        if failure is None:
            self._send(Started(self._children[pid], pid))
            return
        child_id = self._children.pop(pid)
        del self._pids[child_id]
        self._send(_failed(child_id, failure))

    def _signal(self, request: SignalRequest) -> Record:
        pid = self._pids.get(request.child_id)
        if pid is not None:
            try:
                os.killpg(pid, request.signum)
            except OSError as error:
                return Signalled(request.request_id, False, error.errno or errno.EPERM)
            return Signalled(request.request_id, True)
        group = self._leaderless.get(request.child_id)
        reached = group is not None and signal_members(
            self._libc.send_signal, group, os.getpid(), request.signum, leader_reaped=True
        )
        if not reached:
            self._leaderless.pop(request.child_id, None)
        return Signalled(request.request_id, reached)

    def _report_exits(self) -> None:
        for pid, status in reap_ended():
            if self._confinement is not None:
                report = self._confinement.report_of(pid)
                if report is not None:
                    self._hear(report)  # the answer to its start comes first
                status = self._confinement.take_end(pid, status)
            if pid in self._supervisors:
                self._supervisors.discard(pid)
                self._deserted = True
                self._end_deserted()
            child_id = self._children.pop(pid, None)
            if child_id is None:
                continue  # an orphan of some child
            del self._pids[child_id]
            survivors = has_members(pid)
            if survivors:
                self._remember_group(child_id, pid)
            self._send(Exited(child_id, pid, status, survivors))
        if self._deserted:
            self._end_deserted()

    def _end_deserted(self) -> None:
        """Kill what a supervisor has left, round after round: all that belongs to a call ends with it.

        The supervisor does that itself, unless it is killed.  In a zygote that supervises shells there are no
        orphans but those.
        """
        deserted = [pid for pid in own_children() if pid not in self._children]
        for pid in deserted:
            try:
                os.kill(pid, _SIGKILL)
            except OSError:
                pass  # of another user by now
        self._deserted = bool(deserted)

    def _remember_group(self, child_id: int, group: int) -> None:
        if len(self._leaderless) >= _LEADERLESS_KEPT:
            del self._leaderless[next(iter(self._leaderless))]
        self._leaderless[child_id] = group

    def _send(self, record: Record) -> None:
        send_record(self._sock, encode(record))


def _failed(request_id: int, failure: SpawnFailure) -> Failed:
    return Failed(request_id, failure.stage, failure.errno, failure.reason, failure.details)


def _drain(signals: int) -> None:
    try:
        while os.read(signals, 4096):
            pass
    except BlockingIOError:
        pass
