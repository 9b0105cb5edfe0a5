"""Start commands: choose the zygote that does it, and end everything at shutdown.

One zygote does all work, one start at a time; only sandbox inits, once forked, run side by side.  If a zygote
does not finish its part of a start within a second, it is retired and later starts go to a new zygote.  A
start without an answer before its deadline fails for its client.  A retired zygote keeps its children, and
gets work again once it answers.  If a zygote dies, this process inherits its descendants: it kills them,
reports their exits, and starts a new zygote for the next start.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import TYPE_CHECKING

import gevent
from gevent.lock import BoundedSemaphore

from execserver.core import spawn_errors
from execserver.protocol.errors import RpcError
from execserver.services.launch.child import Child, Streams
from execserver.services.launch.orphans import Orphanage, wait_for_end
from execserver.services.launch.start_request import (
    SpawnSpec,
    check_sandbox,
    confinement_fields,
    environment_entries,
    start_error,
    unstarted_program,
)
from execserver.services.launch.zygote_link import AnswerTimeout, LinkState, PendingStart, ZygoteLink
from execserver.settings import Settings
from execserver.zygote.confinement import Confinement
from execserver.zygote.launch import ZygoteProcess, start_zygote
from execserver.zygote.libc import Libc
from execserver.zygote.records import (
    UNLIMITED,
    Failed,
    SpawnRequest,
    WorkerRequest,
)

if TYPE_CHECKING:
    from execserver.handover.carrier import Incoming, Outgoing
    from execserver.handover.records import PackedSpawner

__all__ = ["Child", "SpawnSpec", "Spawner"]

_PATIENCE_S = 1.0  # a start takes a millisecond; after a second the others no longer wait behind it
_MAX_HANGING_ZYGOTES = 4  # each holds one hanging start; a fifth start would most likely hang, too
_ROOTS_AT_ONCE = 32  # sandbox inits at work; each takes a few milliseconds and, for that long, some memory
_SHUTDOWN_STEP_S = 0.002
_ZYGOTE_END_S = 2.0  # for a zygote to end its descendants; then it is killed, and this process ends them
_CONTAINER_REAP_S = 5.0  # how often pid 1 of a container looks for ended orphans of other programs


class StartedWorker:
    """The process of a file worker; its zygote reaps it."""

    def __init__(self, child: Child, link: ZygoteLink) -> None:
        self._child = child
        self._link = link

    @property
    def pid(self) -> int:
        """The pid of the worker."""
        return self._child.pid

    @property
    def exited(self) -> bool:
        """True once the worker was reaped."""
        return self._child.exited

    def kill(self) -> None:
        """Kill the worker without waiting for its end."""
        if not self._child.exited:
            self._link.signal_soon(self._child, signal.SIGKILL)


class Spawner:
    """The owner of all zygotes; it starts commands and file workers.

    `first` is a zygote that runs already, with the same command and the same soft limit of open files for
    children; with None the first start makes one.  `on_loss` is called after a zygote has died and everything
    it left behind has ended.  This process becomes a child subreaper.  All methods run in one thread.
    """

    def __init__(
        self,
        zygote_command: Sequence[bytes],
        first: ZygoteProcess | None,
        soft_nofile: int,
        settings: Settings,
        on_loss: Callable[[], None] | None = None,
    ) -> None:
        # Descendants of a zygote that dies become our children, so we can find, kill and reap them.
        Libc().set_child_subreaper()
        self._zygote_command = zygote_command
        self._soft_nofile = soft_nofile
        self._spawn_timeout_s = settings.spawn_timeout_s
        self._patience_s = min(_PATIENCE_S, settings.spawn_timeout_s)
        # One start at a time: the zygote has one thread, and this shows which start makes it hang.
        self._turn = BoundedSemaphore(1)
        self._roots = BoundedSemaphore(_ROOTS_AT_ONCE)
        self._links: set[ZygoteLink] = set()
        self._zygotes: set[int] = set()  # pids not reaped yet; outlives the link of a dead zygote
        self._orphaned: dict[int, Child] = {}  # by pid: children whose zygote died before it reported them
        self._orphanage = Orphanage(lambda: self._zygotes, self._orphan_reaped)
        self._unclaimed: dict[tuple[int, int], Child] = {}  # by zygote and id: handed over, and nobody's yet
        self._locks: list[int] = []  # of the files that released zygotes run from
        self._closing = False
        self._on_loss = on_loss
        self._active = None if first is None else self._connect(first)
        # Pid 1 of a container inherits orphans of programs we never started; nobody else reaps those.
        self._container_reaper = gevent.spawn(self._reap_container) if os.getpid() == 1 else None

    def spawn(self, spec: SpawnSpec) -> Child:
        """Start a command and return it once its program runs.

        The caller then owns the descriptors of the child.  Raises SandboxNotMade, or RpcError with the texts
        of the wire contract (sections 8.1 and 8.7).  After an error nothing runs and no descriptor is open;
        the same holds when the calling greenlet is killed.
        """
        entries = environment_entries(spec)
        started = self._start(spec, entries)
        if isinstance(started, Child):
            return started
        # With a sandbox context the reference server runs a helper that cannot execute the program: the
        # client sees a started process that prints the reason and exits with 101, not a failed start.
        instead = unstarted_program(spec, started)
        told = started if instead is None else self._start(spec._replace(confinement=instead), entries)
        if isinstance(told, Failed):
            check_sandbox(told)
            raise start_error(told)
        return told

    def _start(self, spec: SpawnSpec, entries: list[bytes]) -> Child | Failed:
        try:
            with self._room_for(spec), ExitStack() as undo:
                with self._turn:
                    start, streams = self._begin(spec, entries, undo)
                    # The turn covers the zygote's own part only.  A sandbox init has been forked by then and
                    # goes on by itself, so the next start need not wait for its mounts.
                    if not start.begun_within(self._patience_s):
                        self._retire(start.link)
                failed = start.answer()
                if failed is not None:
                    return failed
                undo.pop_all()  # nothing between here and `accept` blocks, so no greenlet is killed there
        except AnswerTimeout:
            raise spawn_errors.start_timed_out(self._spawn_timeout_s) from None
        # Else our copies of the child's ends would keep its outputs from ever reaching their end of file.
        streams.close_child_ends()
        return start.accept()

    def _room_for(self, spec: SpawnSpec) -> AbstractContextManager[object]:
        """Return the limit of sandboxes being built at a time; a start without a sandbox has none."""
        sandboxed = spec.confinement is not None and spec.confinement.plan
        return self._roots if sandboxed else nullcontext()

    def start_worker(self, confinement: Confinement, sock_fd: int) -> StartedWorker:
        """Start a file worker in a confinement with a sandbox plan; `sock_fd` is its end of a socket pair.

        The caller keeps and closes the descriptor.  Raises SandboxNotMade if the sandbox root cannot be made,
        else InternalError; after an error nothing runs.
        """
        try:
            with ExitStack() as undo:
                with self._turn:
                    link = self._working_link()
                    child = Child(link.next_id(), False, Streams(), link)
                    deadline_ns = time.monotonic_ns() + int(self._spawn_timeout_s * 1e9)
                    request = WorkerRequest(child.child_id, confinement, deadline_ns)
                    start = self._ask(link, child, request, [sock_fd])
                    undo.callback(start.abandon)
                    if not start.begun_within(self._patience_s):
                        self._retire(start.link)
                failed = start.answer()
                if failed is not None:
                    check_sandbox(failed)
                    raise spawn_errors.os_failure(failed.errno)
                undo.pop_all()
        except AnswerTimeout:
            raise spawn_errors.start_timed_out(self._spawn_timeout_s) from None
        return StartedWorker(start.accept(), link)

    @property
    def live(self) -> list[Child]:
        """The processes that started and have not been reaped."""
        # A child without a pid has been asked for but not started.
        children = [child for link in self._links for child in link.children.values() if child.pid]
        return children + list(self._orphaned.values())

    @property
    def unsettled(self) -> str | None:
        """Why nothing can be handed over now; None if it can."""
        if any(link.hanging for link in self._links):
            return "a start, or a signal, has not been answered yet"
        return "what a zygote has left is being ended" if self._orphaned else None

    def pack(self, out: Outgoing, lock: int | None) -> PackedSpawner:
        """Return what `adopt` takes; not while it is `unsettled`.

        `lock` keeps the files from which this program, and so its zygotes, run; None where nothing does.
        """
        from execserver.handover.records import PackedSpawner

        links = [link.pack(out) for link in self._links]
        ending = self._zygotes - {link.pid for link in self._links}
        locks = [*self._locks, *([] if lock is None else [lock])]
        return PackedSpawner(links, list(ending), [out.keep(each) for each in locks])

    def adopt(self, packed: PackedSpawner, incoming: Incoming) -> None:
        """Take over zygotes with their children, which wait to be claimed."""
        for each in packed.links:
            link = self._connect(ZygoteProcess(each.pid, incoming.take(each.fd)))
            link.adopt(each)
            self._unclaimed.update({(link.pid, child_id): child for child_id, child in link.children.items()})
        for pid in packed.ending:
            self._zygotes.add(pid)
            gevent.spawn(self._await_end, pid)
        self._locks = [incoming.take(lock) for lock in packed.locks]

    def prepare(self) -> None:
        """Have a zygote for the next start; if that cannot be, the start says so."""
        if not self._closing:
            with suppress(RpcError):
                self._working_link()

    def claim(self, zygote: int, child_id: int) -> Child | None:
        """Return a child that was handed over, to its owner; None if it has ended."""
        return self._unclaimed.pop((zygote, child_id), None)

    def kill_unclaimed(self) -> None:
        """Kill what was handed over and belongs to nobody: file workers, and what was being killed."""
        for (zygote, _), child in self._unclaimed.items():
            for link in self._links:
                if link.pid == zygote:
                    link.signal_soon(child, signal.SIGKILL)
        self._unclaimed.clear()

    def _await_end(self, pid: int) -> None:
        wait_for_end(pid)
        self._zygotes.discard(pid)

    def shutdown(self, grace_s: float) -> None:
        """End all processes: SIGTERM (terminals also get SIGHUP), SIGKILL after `grace_s`, zygotes last.

        From now on starts fail.  Returns when no descendant is left; if one is stuck in the kernel, a limited
        time after the grace period.
        """
        self._closing = True
        for link in self._links:
            for child in link.children.values():
                link.signal_soon(child, signal.SIGTERM)
                if child.tty:
                    # An interactive shell ignores SIGTERM; the hangup of its terminal ends it.
                    link.signal_soon(child, signal.SIGHUP)
        self._wait_while(lambda: bool(self.live), grace_s)
        for link in list(self._links):
            link.close()  # end of file: the zygote kills its descendants, reaps them and exits with 0
        self._wait_while(lambda: bool(self._zygotes or self._orphaned), _ZYGOTE_END_S)
        for pid in self._zygotes:
            # It hangs in a system call.  `_link_ended` then ends its descendants as ours.
            os.kill(pid, signal.SIGKILL)
        self._wait_while(lambda: bool(self._zygotes or self._orphaned), _ZYGOTE_END_S)
        if self._container_reaper is not None:
            self._container_reaper.kill()

    def _begin(self, spec: SpawnSpec, entries: list[bytes], undo: ExitStack) -> tuple[PendingStart, Streams]:
        link = self._working_link()
        try:
            streams = Streams.terminal(spec.size) if spec.tty else Streams.pipes(spec.pipe_stdin)
        except OSError as error:
            raise spawn_errors.os_failure(error.errno or errno.EIO) from None
        undo.callback(streams.close)
        child = Child(link.next_id(), spec.tty, streams, link)
        piped = spec.pipe_stdin and not spec.tty
        deadline_ns = time.monotonic_ns() + int(self._spawn_timeout_s * 1e9)
        request = SpawnRequest(
            *(child.child_id, spec.argv, entries, spec.cwd, spec.arg0, streams.slave, piped, deadline_ns),
            *confinement_fields(spec),
            UNLIMITED if spec.limits is None else spec.limits.of_child,
        )
        # The zygote counts on this order: the child's ends as `Streams` lists them, then the question socket,
        # the one for listening sockets, and the control group.
        further = [] if spec.watch is None else [spec.watch.questions_fd]
        if spec.listens:
            further.append(spec.listeners_fd)
        if spec.limits is not None and spec.limits.group_fd >= 0:
            further.append(spec.limits.group_fd)
        start = self._ask(link, child, request, [*streams.child_ends, *further])
        undo.callback(start.abandon)  # runs before `streams.close`: the process is killed first
        return start, streams

    def _ask(
        self,
        link: ZygoteLink,
        child: Child,
        request: SpawnRequest | WorkerRequest,
        descriptors: Sequence[int],
    ) -> PendingStart:
        try:
            return link.begin_start(child, request, descriptors, self._patience_s)
        except AnswerTimeout:
            self._retire(link)  # its socket stayed full: it reads nothing
            raise
        except OSError as error:
            raise spawn_errors.os_failure(error.errno or errno.EIO) from None

    def _working_link(self) -> ZygoteLink:
        if self._closing:
            raise spawn_errors.shutting_down()
        if self._active is None:
            self._active = self._recovered() or self._further()
        return self._active

    def _recovered(self) -> ZygoteLink | None:
        # Take back a retired zygote first: a new one costs 15 to 17 ms, and the old one lives on anyway.
        for link in self._links:
            if link.state is LinkState.RETIRED and not link.hanging:
                link.reactivate()
                return link
        return None

    def _further(self) -> ZygoteLink:
        hanging = sum(link.hanging for link in self._links)
        if hanging >= _MAX_HANGING_ZYGOTES:
            raise spawn_errors.too_many_hanging(hanging)
        try:
            return self._connect(start_zygote(self._zygote_command, self._soft_nofile))
        except OSError as error:
            raise spawn_errors.os_failure(error.errno or errno.EIO) from None

    def _connect(self, process: ZygoteProcess) -> ZygoteLink:
        link = self._new_link(process)
        self._zygotes.add(process.pid)
        self._links.add(link)
        return link

    def _new_link(self, process: ZygoteProcess) -> ZygoteLink:
        return ZygoteLink(process, self._link_ended)

    def _retire(self, link: ZygoteLink) -> None:
        link.retire()
        if self._active is link:
            self._active = None

    def _link_ended(self, link: ZygoteLink) -> None:
        """Reap the zygote, and kill and reap what it left; then report the exit of each child of the link."""
        if self._active is link:
            self._active = None
        self._links.discard(link)
        left = {child.pid: child for child in link.children.values() if child.pid}
        link.children.clear()
        self._orphaned.update(left)
        # The kernel closes the zygote's socket before it makes the zygote's children ours; only the end of
        # the zygote itself tells that all of them are.
        status = wait_for_end(link.pid)
        self._zygotes.discard(link.pid)
        if not any(one.state is LinkState.RELEASED for one in self._links):
            locks, self._locks = self._locks, []
            for lock in locks:
                os.close(lock)
        # With status 0 it ended its descendants itself.  Orphans that are there all the same belong to other
        # programs (we may be pid 1 of a container), and must not be killed.
        if status != 0:
            self._orphanage.end_orphans()
            if self._on_loss is not None:
                self._on_loss()
        for pid in left:
            # The zygote reaped it, and died before it could report the exit; the real status is lost.
            if pid in self._orphaned:
                self._orphaned[pid].is_lost = True
            self._orphan_reaped(pid, signal.SIGKILL)

    def _orphan_reaped(self, pid: int, status: int) -> None:
        child = self._orphaned.pop(pid, None)
        if child is not None:
            child.set_exited(status, survivors=False)

    def _reap_container(self) -> None:
        while True:
            gevent.sleep(_CONTAINER_REAP_S)
            self._orphanage.reap_ended_orphans()

    def _wait_while(self, condition: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while condition() and time.monotonic() < end:
            gevent.sleep(_SHUTDOWN_STEP_S)
