"""Starting user processes: which zygote does it, what the client is told when it fails, and how all of it
ends.

One zygote does all work.  A start it does not answer in time is an error for its client, and the zygote is
retired: a new one takes over, the old one keeps its children.  When a zygote dies its descendants are this
process's: they are killed, their exits reported, and the next start begins with a new zygote.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import gevent

from execserver.core import spawn_errors
from execserver.core.spawn_errors import CandidateFault, LookupRefusal
from execserver.protocol.errors import InternalError
from execserver.services.adoption import Orphanage, wait_for_end
from execserver.services.child import Child, Streams
from execserver.services.zygote_link import AnswerTimeout, LinkState, ZygoteLink
from execserver.settings import Settings
from execserver.zygote import lookup
from execserver.zygote.launch import ZygoteProcess, start_zygote
from execserver.zygote.libc import Libc
from execserver.zygote.records import STAGE_LOOKUP, Failed, SpawnRequest

__all__ = ["Child", "SpawnSpec", "Spawner"]

_MAX_HANGING_ZYGOTES = 4  # each holds up to a process table of its own; a fifth would not fare better
_STRINGS_BYTES = 8 * 1024 * 1024  # above what any kernel passes to a new program (6 MiB)
_SHUTDOWN_STEP_S = 0.002
_ZYGOTE_END_S = 2.0  # for a zygote to end its descendants; then it is killed and this process does it
_CONTAINER_REAP_S = 5.0  # how often the first process of a container looks for ended strangers

_REFUSALS = {
    lookup.NOT_IN_PATH: LookupRefusal.NOT_IN_PATH,
    lookup.NO_PATH: LookupRefusal.NO_PATH,
    lookup.MISSING: LookupRefusal.MISSING,
    lookup.MISSING_RELATIVE: LookupRefusal.MISSING_RELATIVE,
    lookup.NOT_EXECUTABLE: LookupRefusal.NOT_EXECUTABLE,
    lookup.NOT_EXECUTABLE_RELATIVE: LookupRefusal.NOT_EXECUTABLE_RELATIVE,
    lookup.IS_DIRECTORY: LookupRefusal.IS_DIRECTORY,
}
_FAULTS = {
    lookup.NOTE_DIRECTORY: CandidateFault.DIRECTORY,
    lookup.NOTE_NOT_EXECUTABLE: CandidateFault.NOT_EXECUTABLE,
}


class SpawnSpec(NamedTuple):
    """What to start.

    `env` as a mapping is passed on in the order of its names, as pairs in their own order.  `pipe_stdin`
    has no effect on a tty, `size` (rows, columns) only there.
    """

    argv: Sequence[bytes]
    env: Mapping[bytes, bytes] | Sequence[tuple[bytes, bytes]]
    cwd: bytes
    arg0: bytes | None = None
    tty: bool = False
    pipe_stdin: bool = False
    size: tuple[int, int] = (24, 80)


class Spawner:
    """The owner of all zygotes and the way to start processes.

    `first` is a zygote already started with the same command and the same soft limit of open files for
    children; None starts one at the first need.  This process becomes a child subreaper.  Everything
    happens in the thread that made it.
    """

    def __init__(
        self,
        zygote_command: Sequence[bytes],
        first: ZygoteProcess | None,
        soft_nofile: int,
        settings: Settings,
    ) -> None:
        Libc().set_child_subreaper()
        self._zygote_command = zygote_command
        self._soft_nofile = soft_nofile
        self._spawn_timeout_s = settings.spawn_timeout_s
        self._links: set[ZygoteLink] = set()
        self._zygotes: set[int] = set()
        self._orphaned: dict[int, Child] = {}
        self._orphanage = Orphanage(lambda: self._zygotes, self._orphan_reaped)
        self._closing = False
        self._active = None if first is None else self._connect(first)
        self._container_reaper = gevent.spawn(self._reap_container) if os.getpid() == 1 else None

    def spawn(self, spec: SpawnSpec) -> Child:
        """Start a process and return it once its program runs.

        The caller owns the descriptors of the child from then on.  Raises InternalError with the contract's
        texts (section 8.1); nothing runs and nothing is open then.
        """
        entries = _entries(spec)
        link = self._working_link()
        try:
            streams = Streams.terminal(spec.size) if spec.tty else Streams.pipes(spec.pipe_stdin)
        except OSError as error:
            raise spawn_errors.os_failure(error.errno or errno.EIO) from None
        child = Child(link.next_id(), spec.tty, streams, link)
        piped = spec.pipe_stdin and not spec.tty
        request = SpawnRequest(child.child_id, spec.argv, entries, spec.cwd, spec.arg0, streams.slave, piped)
        try:
            failed = link.spawn(child, request, streams.child_ends, self._spawn_timeout_s)
            if failed is not None:
                raise _error(failed)
        except AnswerTimeout:
            streams.close()
            self._retire(link)
            raise spawn_errors.start_timed_out(self._spawn_timeout_s) from None
        except BaseException:
            streams.close()
            raise
        streams.close_child_ends()
        return child

    @property
    def live(self) -> list[Child]:
        """The processes that run and have not been reaped."""
        children = [child for link in self._links for child in link.children.values() if child.pid]
        return children + list(self._orphaned.values())

    def shutdown(self, grace_s: float) -> None:
        """End everything: SIGTERM to all groups (and SIGHUP to terminals), SIGKILL after the grace, zygotes
        last.

        Starts fail from now on.  Returns when no descendant is left, or a bounded time after the grace if
        one is stuck in the kernel.
        """
        self._closing = True
        for child in self.live:
            self._signal_soon(child, signal.SIGTERM)
            if child.tty:
                self._signal_soon(child, signal.SIGHUP)
        self._wait_while(lambda: bool(self.live), grace_s)
        for link in list(self._links):
            link.close()
        self._wait_while(lambda: bool(self._zygotes or self._orphaned), _ZYGOTE_END_S)
        for pid in self._zygotes:
            os.kill(pid, signal.SIGKILL)
        self._wait_while(lambda: bool(self._zygotes or self._orphaned), _ZYGOTE_END_S)
        if self._container_reaper is not None:
            self._container_reaper.kill()

    def _working_link(self) -> ZygoteLink:
        if self._closing:
            raise spawn_errors.shutting_down()
        if self._active is None:
            hanging = sum(link.state is not LinkState.LOST for link in self._links)
            if hanging >= _MAX_HANGING_ZYGOTES:
                raise spawn_errors.too_many_hanging(hanging)
            try:
                self._active = self._connect(start_zygote(self._zygote_command, self._soft_nofile))
            except OSError as error:
                raise spawn_errors.os_failure(error.errno or errno.EIO) from None
        return self._active

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
        wait_for_end(link.pid)
        self._zygotes.discard(link.pid)
        self._orphanage.end_orphans()
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

    def _signal_soon(self, child: Child, signum: int) -> None:
        for link in self._links:
            if link.children.get(child.child_id) is child:
                link.signal_soon(child, signum)

    def _wait_while(self, condition: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while condition() and time.monotonic() < end:
            gevent.sleep(_SHUTDOWN_STEP_S)


def _entries(spec: SpawnSpec) -> list[bytes]:
    """Check what can be refused before anything is made; return the environment as the kernel takes it."""
    if not spec.argv[0]:
        raise spawn_errors.missing_program(spec.tty)
    env = sorted(spec.env.items()) if isinstance(spec.env, Mapping) else spec.env
    entries = [name + b"=" + value for name, value in env]
    size = 0
    for string in [*spec.argv, *entries, spec.arg0 or b"", spec.cwd]:
        if b"\0" in string:
            raise spawn_errors.nul_byte()
        size += len(string) + 1
    if size > _STRINGS_BYTES:
        raise spawn_errors.os_failure(errno.E2BIG)
    return entries


def _error(failed: Failed) -> InternalError:
    if failed.stage != STAGE_LOOKUP:
        return spawn_errors.os_failure(failed.errno)
    program, path, *notes = [*failed.details, b""]
    candidates = tuple((_FAULTS[note[:1]], note[1:]) for note in notes if note)
    return spawn_errors.lookup_refused(_REFUSALS[failed.reason], program, failed.errno, path, candidates)
