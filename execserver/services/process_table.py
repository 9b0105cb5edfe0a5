"""The processes of one session, by the client's ids (wire contract, section 8)."""

from __future__ import annotations

from collections.abc import Iterator

from execserver.core.process_state import ProcessState, SandboxNote
from execserver.eventloop.delay_queue import DelayQueue
from execserver.protocol.errors import InvalidRequest
from execserver.services.attachment import Attachment
from execserver.services.child import Child
from execserver.services.process import Process, Templates
from execserver.services.spawner import Spawner, SpawnSpec


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

    def __init__(self, spawner: Spawner, retention: Retention, retained_bytes: int) -> None:
        self.attachment = Attachment()
        self._spawner = spawner
        self._retention = retention
        self._retained_bytes = retained_bytes
        self._processes: dict[str, Process] = {}
        self._starting: set[str] = set()  # ids taken by starts that wait for the zygote
        self._ended = False

    def __iter__(self) -> Iterator[tuple[str, Process]]:
        # Over a copy: ending a process waits for the zygote, and others may be forgotten meanwhile.
        return iter(list(self._processes.items()))

    def check_free(self, process_id: str) -> None:
        """Raise `InvalidRequest` when the id is taken."""
        if process_id in self._processes or process_id in self._starting:
            raise InvalidRequest(f"process {process_id} already exists")

    def start(
        self,
        process_id: str,
        argv: list[str],
        spec: SpawnSpec,
        templates: Templates,
        sandbox: SandboxNote | None = None,
    ) -> Process:
        """Start a program; block until it runs or the start fails.  `sandbox` is None without a context.

        The caller must call `Process.begin` once the answer is queued.  Raises `InvalidRequest` for a taken
        id; if the program cannot be started, `SandboxNotMade` or an `RpcError` with the contract's text, and
        the id is free again.
        """
        self.check_free(process_id)
        self._starting.add(process_id)
        try:
            child = self._spawner.spawn(spec)
        finally:
            self._starting.discard(process_id)
        state = ProcessState(tty=spec.tty, retained_bytes=self._retained_bytes, sandbox=sandbox)
        state.started()
        process = Process(templates, argv, state, child, self.attachment, lambda: self._closed(process_id))
        self._processes[process_id] = process
        # The session ended while the program was starting, so `end` did not find this process.
        if self._ended:
            process.begin()  # nobody else will: the end needs the exit to be read
            process.end()
        return process

    def reserve(self, process_id: str) -> Reservation:
        """Keep a free id for a start that has to wait for something else; it `is_starting` meanwhile."""
        self.check_free(process_id)
        return Reservation(self._starting, process_id)

    def spawn(self, spec: SpawnSpec) -> Child:
        """Start a program that is no process of the session; the caller owns it.  Raises as `start` does."""
        return self._spawner.spawn(spec)

    def find(self, process_id: str) -> Process | None:
        """Return a process that was started and has not been forgotten, or None."""
        return self._processes.get(process_id)

    def known(self, process_id: str) -> Process:
        """Return a process or raise `InvalidRequest` (section 8.2)."""
        process = self._processes.get(process_id)
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
        for process_id, process in self:
            process.end()
            if process.state.closed:
                self.forget(process_id)

    def forget(self, process_id: str) -> None:
        """Drop a closed process and its output."""
        self._processes.pop(process_id, None)
        self._retention.discard((self, process_id))

    def _closed(self, process_id: str) -> None:
        if self._ended:
            self.forget(process_id)
        else:
            self._retention.add((self, process_id))


Retention = DelayQueue[tuple[ProcessTable, str]]
