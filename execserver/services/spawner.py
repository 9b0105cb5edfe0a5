"""Starting user processes: which zygote does it, and how all of it ends.

One zygote does all work, one start at a time; only sandboxes are made side by side, once forked.  A start
that the zygote is not done with soon sends the others to a new zygote; when it is not answered in time at
all, it is an error for its client.  The old zygote keeps its children, and works again when it answers again.
When a zygote dies its descendants are this process's: they are killed, their exits reported, and the next
start begins with a new zygote.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

import gevent
from gevent.lock import BoundedSemaphore

from execserver.core import spawn_errors
from execserver.services.adoption import Orphanage, wait_for_end
from execserver.services.child import Child, Streams
from execserver.services.start_request import (
    SpawnSpec,
    confinement_fields,
    environment_entries,
    start_error,
    unstarted_program,
    worker_error,
)
from execserver.services.zygote_link import AnswerTimeout, LinkState, PendingStart, ZygoteLink
from execserver.settings import Settings
from execserver.zygote.launch import ZygoteProcess, start_zygote
from execserver.zygote.libc import Libc
from execserver.zygote.records import (
    BACK_END_BUBBLEWRAP,
    BACK_END_NATIVE,
    Failed,
    SpawnRequest,
    WorkerRequest,
)

__all__ = ["Child", "SpawnSpec", "Spawner"]

_PATIENCE_S = 1.0  # a start takes a millisecond; after a second the others do not wait behind it any longer
_MAX_HANGING_ZYGOTES = 4  # each holds one start that hangs; a fifth start there would fare no better
_VIEWS_AT_ONCE = 32  # sandboxes being made; one takes a few milliseconds and, for that long, some memory
_SHUTDOWN_STEP_S = 0.002
_ZYGOTE_END_S = 2.0  # for a zygote to end its descendants; then it is killed and this process does it
_CONTAINER_REAP_S = 5.0  # how often the first process of a container looks for ended strangers


class StartedWorker:
    """A file worker's process; its zygote reaps it."""

    def __init__(self, child: Child, link: ZygoteLink) -> None:
        self._child = child
        self._link = link

    @property
    def pid(self) -> int:
        """Its number."""
        return self._child.pid

    @property
    def exited(self) -> bool:
        """True once it was reaped."""
        return self._child.exited

    def kill(self) -> None:
        """Kill it; waits for nothing."""
        if not self._child.exited:
            self._link.signal_soon(self._child, signal.SIGKILL)


class Spawner:
    """The owner of all zygotes and the way to start processes.

    `first` is a zygote already started with the same command and the same soft limit of open files for
    children; None starts one at the first need.  `on_loss` is called when a zygote has died and all that it
    left has ended.  This process becomes a child subreaper.  Everything happens in the thread that made it.
    """

    def __init__(
        self,
        zygote_command: Sequence[bytes],
        first: ZygoteProcess | None,
        soft_nofile: int,
        settings: Settings,
        on_loss: Callable[[], None] | None = None,
    ) -> None:
        Libc().set_child_subreaper()
        self._zygote_command = zygote_command
        self._soft_nofile = soft_nofile
        self._spawn_timeout_s = settings.spawn_timeout_s
        self._patience_s = min(_PATIENCE_S, settings.spawn_timeout_s)
        self._turn = BoundedSemaphore(1)
        self._views = BoundedSemaphore(_VIEWS_AT_ONCE)
        self._links: set[ZygoteLink] = set()
        self._zygotes: set[int] = set()
        self._orphaned: dict[int, Child] = {}
        self._orphanage = Orphanage(lambda: self._zygotes, self._orphan_reaped)
        self._closing = False
        self._on_loss = on_loss
        self.bubblewrap = b""  # what the zygote needs to know of it, once it is known to be a back end
        self._active = None if first is None else self._connect(first)
        self._container_reaper = gevent.spawn(self._reap_container) if os.getpid() == 1 else None

    def spawn(self, spec: SpawnSpec) -> Child:
        """Start a process and return it once its program runs.

        The caller owns the descriptors of the child from then on.  Raises RpcError with the contract's
        texts (sections 8.1 and 8.7); nothing runs and nothing is open then, nor when the calling greenlet is
        killed.
        """
        entries = environment_entries(spec)
        started = self._start(spec, entries)
        if isinstance(started, Child):
            return started
        instead = unstarted_program(spec, started)
        told = started if instead is None else self._start(spec._replace(confinement=instead), entries)
        if isinstance(told, Failed):
            raise start_error(told)
        return told

    def _start(self, spec: SpawnSpec, entries: list[bytes]) -> Child | Failed:
        try:
            with self._room_for(spec), ExitStack() as undo:
                with self._turn:
                    start, streams = self._begin(spec, entries, undo)
                    if not start.begun_within(self._patience_s):
                        self._retire(start.link)
                failed = start.answer()
                if failed is not None:
                    return failed
                undo.pop_all()
        except AnswerTimeout:
            raise spawn_errors.start_timed_out(self._spawn_timeout_s) from None
        streams.close_child_ends()
        return start.accept()

    def _room_for(self, spec: SpawnSpec) -> AbstractContextManager[object]:
        """Return what bounds the sandboxes being made; a plain start waits for none of them."""
        sandboxed = spec.confinement is not None and spec.confinement.plan
        return self._views if sandboxed else nullcontext()

    def start_worker(self, plan: bytes, sock_fd: int, back_end: int = BACK_END_NATIVE) -> StartedWorker:
        """Start a file worker inside the view of an encoded plan, on its end of a socket pair.

        The descriptor stays the caller's.  Raises InvalidRequest `failed to prepare fs sandbox: <why>` when
        the view cannot be made, else InternalError; nothing runs then.
        """
        try:
            with ExitStack() as undo:
                with self._turn:
                    link = self._working_link()
                    child = Child(link.next_id(), False, Streams(), link)
                    deadline_ns = time.monotonic_ns() + int(self._spawn_timeout_s * 1e9)
                    request = WorkerRequest(child.child_id, plan, deadline_ns, back_end)
                    start = self._ask(link, child, request, [sock_fd])
                    undo.callback(start.abandon)
                    if not start.begun_within(self._patience_s):
                        self._retire(start.link)
                failed = start.answer()
                if failed is not None:
                    raise worker_error(failed)
                undo.pop_all()
        except AnswerTimeout:
            raise spawn_errors.start_timed_out(self._spawn_timeout_s) from None
        return StartedWorker(start.accept(), link)

    @property
    def live(self) -> list[Child]:
        """The processes that run and have not been reaped."""
        children = [child for link in self._links for child in link.children.values() if child.pid]
        return children + list(self._orphaned.values())

    def shutdown(self, grace_s: float) -> None:
        """End everything: SIGTERM to all groups (and SIGHUP to terminals), SIGKILL after the grace, zygotes
        last.

        Starts fail from now on.  Returns when no descendant is left, or a bounded time after the grace if one
        is stuck in the kernel.
        """
        self._closing = True
        for link in self._links:
            for child in link.children.values():
                link.signal_soon(child, signal.SIGTERM)
                if child.tty:
                    link.signal_soon(child, signal.SIGHUP)
        self._wait_while(lambda: bool(self.live), grace_s)
        for link in list(self._links):
            link.close()
        self._wait_while(lambda: bool(self._zygotes or self._orphaned), _ZYGOTE_END_S)
        for pid in self._zygotes:
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
        )
        questions = [] if spec.watch is None else [spec.watch.questions_fd]
        start = self._ask(link, child, request, [*streams.child_ends, *questions])
        undo.callback(start.abandon)
        return start, streams

    def _ask(
        self,
        link: ZygoteLink,
        child: Child,
        request: SpawnRequest | WorkerRequest,
        descriptors: Sequence[int],
    ) -> PendingStart:
        if request.back_end == BACK_END_BUBBLEWRAP:
            request.plan = self.bubblewrap + request.plan
        try:
            return link.begin_start(child, request, descriptors, self._patience_s)
        except AnswerTimeout:
            self._retire(link)
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
        link = ZygoteLink(process, self._link_ended)
        self._zygotes.add(process.pid)
        self._links.add(link)
        return link

    def _retire(self, link: ZygoteLink) -> None:
        link.retire()
        if self._active is link:
            self._active = None

    def _link_ended(self, link: ZygoteLink) -> None:
        """Reap the zygote, and kill and reap what it left; then every child of the link has its exit."""
        if self._active is link:
            self._active = None
        self._links.discard(link)
        left = {child.pid: child for child in link.children.values() if child.pid}
        link.children.clear()
        self._orphaned.update(left)
        status = wait_for_end(link.pid)
        self._zygotes.discard(link.pid)
        if status != 0:  # else it has ended its descendants itself
            self._orphanage.end_orphans()
            if self._on_loss is not None:
                self._on_loss()
        for pid in left:
            # Reaped by the zygote, whose record was lost with it.
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
