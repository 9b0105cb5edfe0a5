"""The zygote's event loop: it starts what the server asks for and reports what ended.

When the socket ends, it kills and reaps every descendant.  After a `Release`, which a server sends to the
zygote of the program before it, it ends when nobody is left: what commands have left in the background lives
on until then.  It has one thread and waits for the socket, a signalfd, and one report pipe for each sandbox
that is being made.  The answer to a start is always sent before the exit record of the same child.  Sending
blocks while the server is busy; nothing is queued here.
"""

from __future__ import annotations

import errno
import os
import select
import time

from execserver.zygote.channel import RecordLost, receive_record, send_record
from execserver.zygote.confinement import NOTHING
from execserver.zygote.groups import has_members, signal_members
from execserver.zygote.oom_score import OomScore
from execserver.zygote.reaper import end_all_children, own_children, reap_ended
from execserver.zygote.records import (
    UNLIMITED,
    Begun,
    Exited,
    Failed,
    RecordError,
    Release,
    Signalled,
    SignalRequest,
    SpawnRequest,
    Started,
    WorkerRequest,
    decode,
    encode,
)
from execserver.zygote.rest import ServerRest
from execserver.zygote.spawn import SpawnFailure, spawn
from execserver.zygote.stages import STAGE_EXEC

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

    from execserver.zygote.confine.sandboxes import Sandboxes
    from execserver.zygote.libc import Libc
    from execserver.zygote.records import Record

_SIGKILL = 9
_SIGCHLD = 17
# HUP, INT, QUIT and TERM stay blocked, because the server decides when to stop.  A signal to a whole service
# reaches the zygote, too; one that obeyed could end commands before the server has decided.
_POLITE_SIGNALS = (
    1,
    2,
    3,
    15,
)
# Then the sandbox modules are loaded, so that no start waits for them; the server must be idle as well.
_IDLE_BEFORE_LOADING_MS = 100
# Then a spare supervisor is made.  Before that, the server is busy with the answer to the last call, and of
# calls that run at once others are about to end.
_IDLE_BEFORE_SPARE_MS = 20
_RETRY_MS = 200  # between two attempts to remove mask targets that others still use
_LEADERLESS_KEPT = 256  # groups that outlived their session leader; beyond this the oldest is forgotten


class Zygote:
    """What the zygote knows: its children by pid, and the groups that outlived their session leader."""

    def __init__(
        self,
        sock: _socket.socket,
        libc: Libc,
        runtime_dir: bytes | None = None,
        sandboxes: Sandboxes | None = None,
        oom_score: OomScore | None = None,
        sandbox_program: bytes = b"",
    ) -> None:
        self._sock = sock
        self._libc = libc
        self._runtime_dir = runtime_dir
        self._sandbox_program = sandbox_program
        self._children: dict[int, int] = {}  # pid to request id
        self._pids: dict[int, int] = {}  # request id to pid
        self._leaderless: dict[int, int] = {}  # request id to process group
        self._supervisors: set[int] = set()
        self._is_released = False
        self._spare_is_due = False  # a supervised start has used the spare supervisor, or found none
        self._deserted = False  # an exec supervisor has ended; its orphans may leave orphans of their own
        self._sandboxes = sandboxes
        self._server_rest = ServerRest(os.getppid())
        self._oom_score = OomScore() if oom_score is None else oom_score
        self._retried = 0.0
        self._poll = select.poll()
        self._reports: dict[int, int] = {}  # report descriptor of a sandbox being made, to its pid

    def run(self) -> None:
        """Serve until the server is gone, then kill and reap every descendant."""
        # A signalfd, not a Python signal handler: the end of a child is an event like any other, and no
        # handler runs in the middle of a start.
        signals = self._libc.block_and_watch(_POLITE_SIGNALS, _SIGCHLD)
        self._poll.register(self._sock.fileno(), select.POLLIN)
        self._poll.register(signals, select.POLLIN)
        try:
            while True:
                ready = [descriptor for descriptor, _ in self._poll.poll(self._patience_ms())]
                if not ready and self._sandboxes is None:
                    if self._server_rest.has_come():
                        self._sandboxes_at_need()
                elif not ready and self._spare_is_due:
                    self._make_spare()
                self._retry_now_and_then()
                # By pid, too: a report that is closed meanwhile leaves its number to the next one.
                reports = [(report, self._reports[report]) for report in ready if report in self._reports]
                # Before the exits: a start that has come already takes over the mask targets of what has just
                # ended, which would else be removed and made anew.
                if self._sock.fileno() in ready and not self._serve_one():
                    break
                if signals in ready:
                    _drain(signals)
                    self._report_exits()
                for report, pid in reports:
                    if self._reports.get(report) == pid:
                        self._hear(report)
                self._give_up_overdue()
                if self._is_released and not own_children():
                    break
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server died while an answer was on its way
        # `posix_spawn` cannot set a parent-death signal for commands, so the end of the socket does its work.
        end_all_children()
        if self._sandboxes is not None:
            self._sandboxes.close()

    def _patience_ms(self) -> int | None:
        """Return after how many milliseconds there is something to do without an event; None for never."""
        if self._sandboxes is None:
            return _IDLE_BEFORE_LOADING_MS
        if self._spare_is_due:
            return _IDLE_BEFORE_SPARE_MS
        due = self._sandboxes.next_deadline_ns() if self._reports else 0
        # One millisecond more than what is left: rounded down, the poll would end before the deadline and
        # the loop would spin until it has passed.
        left_ms = max(0, (due - time.monotonic_ns()) // 1_000_000) + 1 if due else None
        if not self._sandboxes.pending:
            return left_ms
        return _RETRY_MS if left_ms is None else min(left_ms, _RETRY_MS)

    def _retry_now_and_then(self) -> None:
        """Remove mask targets that other mask owners used before; done on time on a busy zygote, too."""
        if self._sandboxes is not None and self._sandboxes.pending:
            now = time.monotonic()
            if now - self._retried >= _RETRY_MS / 1000:
                self._retried = now
                self._sandboxes.retry()

    def _serve_one(self) -> bool:
        """Answer one record; return False at end of file."""
        try:
            received = receive_record(self._sock)
        except RecordLost as lost:
            # No descriptor was free for the memfd that held the record.  The datagram itself has the request
            # id, so this one start can be answered.
            self._send(Failed(lost.request_id, STAGE_EXEC, errno.EMFILE))
            return True
        if received is None:
            return False
        data, descriptors = received
        try:
            record = decode(data)
            if isinstance(record, Release):
                self._release()
                return True
            answer = self._answer(record, descriptors)
        finally:
            # The child has its own copies.  One that stayed here would keep a command's pipes from ending.
            for descriptor in descriptors:
                os.close(descriptor)
        self._send(answer)
        return True

    def _release(self) -> None:
        self._is_released = True
        if self._sandboxes is not None:
            self._sandboxes.drop_spare()

    def _make_spare(self) -> None:
        """Prepare for the next supervised start, while there is nothing else to do."""
        self._spare_is_due = False
        if self._sandboxes is not None and not self._is_released:
            with self._oom_score:
                self._sandboxes.make_spare()

    def _answer(self, record: Record, descriptors: list[int]) -> Record:
        if isinstance(record, SpawnRequest | WorkerRequest):
            return self._start(record, descriptors)
        if isinstance(record, SignalRequest):
            return self._signal(record)
        raise RecordError(f"{record!r} is not for the zygote")

    def _started(self, request: SpawnRequest | WorkerRequest, descriptors: list[int]) -> int:
        if isinstance(request, WorkerRequest):
            return self._sandboxes_at_need().begin_worker(request, descriptors)
        if request.limits != UNLIMITED:
            return self._limited(request, descriptors)
        if request.confinement.kind != NOTHING or request.supervision:
            return self._sandboxes_at_need().begin(request, descriptors)
        return spawn(self._libc, request, descriptors)

    def _limited(self, request: SpawnRequest, descriptors: list[int]) -> int:
        """Start a program with limits, in its control group if it has one."""
        grouped = request.limits.grouped
        # The kernel drops what finds no free number here, the last first: without its group nothing runs.
        if request.supervision or len(descriptors) != _ends_of(request) + grouped:
            raise SpawnFailure(STAGE_EXEC, errno.EMFILE)
        group = descriptors[-1] if grouped else -1
        ends = descriptors[: len(descriptors) - grouped]
        sandboxes = self._sandboxes_at_need()
        if request.confinement.kind != NOTHING:
            return sandboxes.begin(request, ends, group)
        from execserver.zygote.limited import LimitedStarts  # late: most servers limit nothing

        return spawn(LimitedStarts(sandboxes.kernel, self._libc, request.limits, group), request, ends)

    def _sandboxes_at_need(self) -> Sandboxes:
        """Load the sandbox modules at their first use, or while there is nothing else to do."""
        if self._sandboxes is None:
            # Imported here: a zygote is ready, and starts plain commands, without these modules.
            from execserver.zygote.confine.sandboxes import Sandboxes

            self._sandboxes = Sandboxes(
                self._libc, runtime_dir=self._runtime_dir, program=self._sandbox_program
            )
        return self._sandboxes

    def _start(self, request: SpawnRequest | WorkerRequest, descriptors: list[int]) -> Record:
        try:
            with self._oom_score:
                pid = self._started(request, descriptors)
        except SpawnFailure as failure:
            return _failed(request.request_id, failure)
        except OSError as error:
            # Out of processes, memory or descriptors, wherever that shows.  This start fails alone; an error
            # that left this method would end the zygote, and with it every command.
            return Failed(request.request_id, STAGE_EXEC, error.errno or errno.EIO)
        self._children[pid] = request.request_id
        self._pids[request.request_id] = pid
        if isinstance(request, SpawnRequest) and request.supervision:
            self._supervisors.add(pid)
        for child_id, group in list(self._leaderless.items()):
            if group == pid:  # the kernel reused the number, so the old group is over
                del self._leaderless[child_id]
        # Begun gives the turn away: the server sends further requests while this sandbox root is built.
        return Begun(request.request_id) if self._await_report(pid) else Started(request.request_id, pid)

    def _hear(self, report: int) -> None:
        """Answer a start whose sandbox has reported how it went, or has died without a report."""
        assert self._sandboxes is not None
        pid = self._forget_report(report)
        failure = self._sandboxes.hear(pid)
        if failure is None or not self._begins_again(pid):
            self._answer_begun(pid, failure)

    def _begins_again(self, pid: int) -> bool:
        """Begin a start again if it failed in a way that asks for it; return False if it did not."""
        assert self._sandboxes is not None
        try:
            with self._oom_score:
                fresh = self._sandboxes.begin_again(pid)
        except SpawnFailure as failure:
            self._answer_begun(pid, failure)
            return True
        if fresh:
            # As with a failed start, nobody hears of the end of the first process.
            child_id = self._children.pop(pid)
            self._children[fresh] = child_id
            self._pids[child_id] = fresh
            self._await_report(fresh)
        return fresh > 0

    def _await_report(self, pid: int) -> bool:
        """Watch for the first report of a sandbox that is being made; return whether there is one to come."""
        report = None if self._sandboxes is None else self._sandboxes.report_of(pid)
        if report is not None:
            self._reports[report] = pid
            self._poll.register(report, select.POLLIN)
        return report is not None

    def _give_up_overdue(self) -> None:
        if self._sandboxes is not None and self._reports:
            for pid in self._sandboxes.give_up_overdue():
                self._forget_report(next(report for report, own in self._reports.items() if own == pid))
                self._answer_begun(pid, SpawnFailure(STAGE_EXEC, errno.ETIMEDOUT))

    def _forget_report(self, report: int) -> int:
        self._poll.unregister(report)
        return self._reports.pop(report)

    def _answer_begun(self, pid: int, failure: SpawnFailure | None) -> None:
        if failure is None:
            self._send(Started(self._children[pid], pid))
            return
        # Nothing was started as far as the server knows, so the exit of this child must not be reported.
        child_id = self._children.pop(pid)
        del self._pids[child_id]
        self._send(_failed(child_id, failure))

    def _signal(self, request: SignalRequest) -> Record:
        pid = self._pids.get(request.child_id)
        if pid is not None:
            # The session leader is not reaped yet, so its number, and its group's, cannot be reused.
            try:
                os.killpg(pid, request.signum)
            except OSError as error:
                return Signalled(request.request_id, False, error.errno or errno.EPERM)
            return Signalled(request.request_id, True)
        # Afterwards the number alone means nothing; `signal_members` looks who is really in the group.
        group = self._leaderless.get(request.child_id)
        reached = group is not None and signal_members(
            self._libc.send_signal, group, os.getpid(), request.signum, leader_reaped=True
        )
        if not reached:
            self._leaderless.pop(request.child_id, None)
        return Signalled(request.request_id, reached)

    def _report_exits(self) -> None:
        # All of them: one SIGCHLD stands for any number of children that ended since the last one was read.
        for pid, status, used in reap_ended():
            if self._sandboxes is not None:
                report = self._sandboxes.report_of(pid)
                if report is not None:
                    self._hear(report)  # the answer to its start goes before its exit
                status = self._sandboxes.take_end(pid, status)
            if pid in self._supervisors:
                self._supervisors.discard(pid)
                self._deserted = self._spare_is_due = True
                self._end_deserted()
            child_id = self._children.pop(pid, None)
            if child_id is None:
                continue  # an orphan of some child, or a start that failed
            del self._pids[child_id]
            # Asked at once: until some new process gets the number, the answer is exact.
            survivors = has_members(pid)
            if survivors:
                self._remember_group(child_id, pid)
            cpu_us = int((used.ru_utime + used.ru_stime) * 1e6)
            self._send(Exited(child_id, pid, status, survivors, cpu_us, used.ru_maxrss))
        if self._deserted:
            self._end_deserted()

    def _end_deserted(self) -> None:
        """Kill one round of what an exec supervisor has left: all that belongs to a call ends with it.

        The supervisor does that itself, unless it is killed.  A zygote that starts supervised shells has no
        other orphans.  What a killed orphan leaves behind is found in the next round.
        """
        sandboxes = self._sandboxes
        deserted = [
            pid
            for pid in own_children()
            if pid not in self._children and (sandboxes is None or not sandboxes.is_spare(pid))
        ]
        for pid in deserted:
            try:
                os.kill(pid, _SIGKILL)
            except OSError:
                pass  # it belongs to another user by now
        self._deserted = bool(deserted)

    def _remember_group(self, child_id: int, group: int) -> None:
        if len(self._leaderless) >= _LEADERLESS_KEPT:  # a dict keeps its order, so the first is the oldest
            del self._leaderless[next(iter(self._leaderless))]
        self._leaderless[child_id] = group

    def _send(self, record: Record) -> None:
        send_record(self._sock, encode(record))


def _failed(request_id: int, failure: SpawnFailure) -> Failed:
    return Failed(request_id, failure.stage, failure.errno, failure.reason, failure.details)


def _ends_of(request: SpawnRequest) -> int:
    """Return how many descriptors come with a request without supervision and without a group."""
    return request.listens + (0 if request.slave else 2 + request.pipe_stdin)


def _drain(signals: int) -> None:
    try:
        while os.read(signals, 4096):
            pass
    except BlockingIOError:
        pass
