"""The processes of one session, by the client's ids (wire contract, section 8).

An id may also be that of a watch (`services/running/watching`): then the process is another session's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from execserver.core.output_log import OutputLog
from execserver.core.process_state import ProcessState, SandboxNote
from execserver.eventloop.delay_queue import DelayQueue
from execserver.protocol import templates
from execserver.protocol.errors import InvalidRequest
from execserver.services.clients.attachment import Attachment
from execserver.services.launch.child import Child, ended_child
from execserver.services.launch.spawner import Spawner, SpawnSpec
from execserver.services.running.process import Process
from execserver.services.running.process_roles import Templates

if TYPE_CHECKING:
    from execserver.handover.carrier import Incoming, Outgoing
    from execserver.handover.records import PackedLimits, PackedProcess, PackedWatch
    from execserver.protocol.resource_limits import ResourceLimits
    from execserver.services.resources.account import Account
    from execserver.services.resources.limiting import SessionLimits
    from execserver.services.running.spool import Spool
    from execserver.services.running.watching import Watch

MAX_WATCHES: Final = 64  # in a session, and of a process
KEPT_CLOSED: Final = 32  # closed processes of a kept session; the one closed first is forgotten for another


class Reservation:
    """An id that is taken until `release`."""

    __slots__ = ("_process_id", "_starting")

    def __init__(self, starting: set[str], process_id: str) -> None:
        self._starting: set[str] | None = starting
        self._process_id = process_id
        starting.add(process_id)

    def release(self) -> None:
        """Free the id; a second call does nothing."""
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.discard(self._process_id)

    def __del__(self) -> None:
        self.release()  # a greenlet that is killed before it ran has no `finally`


class ProcessTable:
    """Starts and finds processes; an id stays taken until some time after its process is closed."""

    state_class = ProcessState

    def __init__(
        self,
        spawner: Spawner,
        retention: Retention,
        retained_bytes: int,
        new_limits: Callable[[], SessionLimits] | None = None,
        *,
        limits_all: bool = False,
    ) -> None:
        """`new_limits` makes what the first process with limits needs; `limits_all`: each one has some."""
        self.attachment = Attachment()
        self._spawner = spawner
        self._retention = retention
        self._retained_bytes = retained_bytes
        self._processes: dict[str, Process] = {}
        self._starting: set[str] = set()  # ids taken by starts that wait for the zygote
        self._ended = False
        self._new_limits = new_limits
        self._limits_all = limits_all
        self._limits: SessionLimits | None = None
        self._watches: dict[str, Watch] = {}
        self._kept_closed: deque[str] | None = None
        self._spools: Callable[[OutputLog], Spool] | None = None
        self.on_start: Callable[[Process, SpawnSpec], None] | None = None  # before its exit can be read

    def __iter__(self) -> Iterator[tuple[str, Process]]:
        # Over a copy: ending a process waits for the zygote, and others may be forgotten meanwhile.
        return iter(list(self._processes.items()))

    def check_free(self, process_id: str) -> None:
        """Raise `InvalidRequest` when the id is taken."""
        if process_id in self._processes or process_id in self._starting or process_id in self._watches:
            raise InvalidRequest(f"process {process_id} already exists")

    def start(
        self,
        process_id: str,
        argv: list[str],
        spec: SpawnSpec,
        templates: Templates,
        sandbox: SandboxNote | None = None,
        limits: ResourceLimits | None = None,
    ) -> Process:
        """Start a program; block until it runs or the start fails.  `sandbox` is None without a context.

        The caller must call `Process.begin` once the answer is queued.  Raises `InvalidRequest` for a taken
        id, `InvalidParams` and `InvalidRequest` for `limits` that it cannot have; if the program cannot be
        started, `SandboxNotMade` or an `RpcError` with the contract's text, and the id is free again.
        """
        self.check_free(process_id)
        self._starting.add(process_id)
        try:
            child, account = self._spawned(spec, limits)
        finally:
            self._starting.discard(process_id)
        state = self.state_class(tty=spec.tty, retained_bytes=self._retained_bytes, sandbox=sandbox)
        state.started()
        process = self._new_process(process_id, templates, argv, state, child)
        process.process_id = process_id
        process.account = account
        if self._spools is not None:
            process.spool_to(self._spools(state.log))
        self._processes[process_id] = process
        if self.on_start is not None:
            self.on_start(process, spec)
        # The session ended while the program was starting, so `end` did not find this process.
        if self._ended:
            process.begin()  # nobody else will: the end needs the exit to be read
            process.end()
        return process

    def _new_process(
        self, process_id: str, templates: Templates, argv: list[str], state: ProcessState, child: Child
    ) -> Process:
        return Process(templates, argv, state, child, self.attachment, lambda: self._closed(process_id))

    def reserve(self, process_id: str) -> Reservation:
        """Keep a free id for a start that has to wait for something else; it `is_starting` meanwhile."""
        self.check_free(process_id)
        return Reservation(self._starting, process_id)

    def spawn(self, spec: SpawnSpec) -> Child:
        """Start a program that is no process of the session; the caller owns it.  Raises as `start` does.

        What limits every process limits it, too.
        """
        child, account = self._spawned(spec, None)
        if account is not None:
            child.on_exit(lambda _: account.close(True, frozenset()) and None)
        return child

    def _spawned(self, spec: SpawnSpec, limits: ResourceLimits | None) -> tuple[Child, Account | None]:
        if self._limits is None:
            if self._new_limits is None or (limits is None and not self._limits_all):
                return self._spawner.spawn(spec), None
            self._limits = self._new_limits()
        elif limits is None and not self._limits_all:
            return self._spawner.spawn(spec), None
        account = self._limits.account(limits)
        try:
            child = self._spawner.spawn(spec._replace(limits=account.start_limits))
        except BaseException:  # a greenlet that is killed, too
            account.discard()
            raise
        account.started(child)
        return child, account

    def find(self, process_id: str) -> Process | None:
        """Return a process that was started, or is watched, and has not been forgotten; or None."""
        process = self._processes.get(process_id)
        if process is None and self._watches and (watch := self._watches.get(process_id)) is not None:
            return watch.process
        return process

    def own(self, process_id: str) -> Process | None:
        """Return a process of this session, not a watched one, or None."""
        return self._processes.get(process_id)

    def watch(self, process: Process, watch_id: str, after_seq: int | None) -> Watch:
        """Follow another session's process under an id of this one; `Watch.start` begins.

        Raises `InvalidRequest` for a taken id, and for one watch too many.
        """
        from execserver.services.running.watching import Watch  # late: few sessions watch anything

        self.check_free(watch_id)
        if len(self._watches) >= MAX_WATCHES:
            raise InvalidRequest(f"at most {MAX_WATCHES} watches in a session")
        if len(process.followers) >= MAX_WATCHES:
            raise InvalidRequest(f"at most {MAX_WATCHES} watchers follow a process")
        self.attachment.knows_watchers = True
        return Watch(process, watch_id, self.attachment, self._watches, after_seq)

    def unwatch(self, watch_id: str) -> None:
        """End a watch, if there is one with this id."""
        watch = self._watches.get(watch_id)
        if watch is not None:
            watch.close()

    @property
    def followed(self) -> list[Process]:
        """The processes of other sessions that this one watches."""
        return [watch.process for watch in self._watches.values()]

    def writable(self, process: Process, process_id: str) -> None:
        """Raise `InvalidRequest` if another session writes to a process."""
        if process.writer is not self.attachment:
            raise InvalidRequest(f"another session writes to process {process_id}; take it first")

    def keep_closed(self, spools: Callable[[OutputLog], Spool] | None) -> None:
        """Keep processes that close from now on until the session ends, the newest `KEPT_CLOSED` of them.

        `spools` makes the spool of each process that starts from now on; None for none.
        """
        self._spools = spools
        if self._kept_closed is None:
            self._kept_closed = deque()

    def known(self, process_id: str) -> Process:
        """Return a process or raise `InvalidRequest` (section 8.2)."""
        process = self.find(process_id)
        if process is None:
            state = "is starting" if process_id in self._starting else None
            raise InvalidRequest(
                f"process id {process_id} {state}" if state else f"unknown process id {process_id}"
            )
        return process

    def is_starting(self, process_id: str) -> bool:
        """Return whether a start with this id has not been answered yet."""
        return process_id in self._starting

    def end(self) -> None:
        """Kill every process and forget those that are closed: the session is over."""
        self._ended = True
        if self._limits is not None:
            self._limits.kill()
        for watch in list(self._watches.values()):
            watch.close()
        for process_id, process in self:
            process.end()
            if process.state.closed:
                self.forget(process_id)
        if self._limits is not None:
            self._limits.end()

    def pack(
        self, out: Outgoing, session_of: Callable[[Attachment], str]
    ) -> tuple[list[PackedProcess], list[PackedWatch]]:
        """Return what `unpack` and `unpack_watches` take; `session_of` names the session of an attachment."""
        from execserver.services.running.process_packing import pack

        processes = [pack(each, out, session_of(each.writer)) for each in self._processes.values()]
        return processes, [each.pack(session_of(each.process.owner)) for each in self._watches.values()]

    def pack_limits(self) -> PackedLimits | None:
        """Return the limits of the session, None without any."""
        return None if self._limits is None else self._limits.pack()

    def unpack_limits(self, packed: PackedLimits) -> None:
        """Hold the processes that were unpacked to their limits again."""
        assert self._new_limits is not None
        self._limits = self._new_limits()
        processes = {each.child_key: each for each in self._processes.values()}

        def child_of(zygote: int, child_id: int) -> Child | None:
            process = processes.get((zygote, child_id))
            return None if process is None else process.child

        for each, account in zip(packed.accounts, self._limits.unpack(packed, child_of), strict=True):
            process = processes.get((each.zygote, each.child_id))
            if process is not None:
                process.account = account

    @property
    def closed(self) -> list[str] | None:
        """The closed processes that are kept until the session ends, oldest first; None if none is."""
        return None if self._kept_closed is None else list(self._kept_closed)

    def keep_again(self, closed: list[str]) -> None:
        """Keep processes that closed before; called behind `keep_closed`."""
        self._kept_closed = deque(closed)

    @property
    def has_spools(self) -> bool:
        """Whether a process that starts now gets a spool."""
        return self._spools is not None

    def unpack(
        self, packed: list[PackedProcess], incoming: Incoming, spool: Callable[[OutputLog], Spool]
    ) -> None:
        """Take over processes; the caller calls `begin` of each."""
        for each in packed:
            self._unpack_one(each, incoming, spool)

    def unpack_watches(self, packed: list[PackedWatch], find: Callable[[str, str], Process | None]) -> None:
        """Follow processes of other sessions again, which `find` finds; the last to do."""
        from execserver.services.running.watching import Watch

        for each in packed:
            process = find(each.session_id, each.process_id)
            if process is not None:
                watch = Watch(process, each.watch_id, self.attachment, self._watches, None)
                watch.restore(each)

    def _unpack_one(
        self, packed: PackedProcess, incoming: Incoming, spool: Callable[[OutputLog], Spool]
    ) -> None:
        from execserver.services.running.process_packing import unpacked

        process_id = packed.process_id
        state = self.state_class.unpacked(packed.state, self._retained_bytes, incoming.beside)
        child = self._spawner.claim(packed.zygote, packed.child_id) or ended_child(packed)
        wording = templates.unpacked(process_id, packed.wording, packed.caps)
        process = unpacked(
            packed, incoming, child, partial(self._new_process, process_id, wording, packed.argv, state)
        )
        if packed.spool is not None:
            process.spool_to(spool(state.log))
            assert process.spool is not None
            process.spool.restore(packed.spool, incoming)
        self._processes[process_id] = process

    def forget(self, process_id: str) -> None:
        """Drop a closed process and its output."""
        process = self._processes.pop(process_id, None)
        if process is not None:
            process.forgotten()
        self._retention.discard((self, process_id))

    def _closed(self, process_id: str) -> None:
        if self._ended:
            self.forget(process_id)
        elif self._kept_closed is not None:
            self._kept_closed.append(process_id)
            if len(self._kept_closed) > KEPT_CLOSED:
                self.forget(self._kept_closed.popleft())
        else:
            self._retention.add((self, process_id))


Retention = DelayQueue[tuple[ProcessTable, str]]
