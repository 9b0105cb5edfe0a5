"""The live file workers: one for each plan in use, started at need and ended when idle.

Requests of one plan queue for its worker in their order; those that may take long have a second worker, so
that the others never wait for them.  There are at most `max_workers`; for one more the worker that was idle
longest ends, and when all are busy the request waits.  Queues and waits are bounded, and at the bound a
request is answered with an error.  Workers are never shared by plans that differ.
"""

from __future__ import annotations

import _socket
import time
from collections.abc import Callable

import gevent
from gevent.event import Event
from gevent.lock import BoundedSemaphore

from execserver.protocol.errors import InternalError, InvalidRequest
from execserver.sandbox.plan import ViewPlan
from execserver.sandbox.plan_record import encode_plan
from execserver.sandbox.worker_records import COPY, RECURSIVE, REMOVE, WALK, Reply, Request
from execserver.services.worker import NotBegun, Worker, WorkerProcess

MAX_WORKERS = 16
MAX_WAITING = 256  # requests that wait for one worker; it answers some thousands a second
IDLE_S = 30.0
_ATTEMPTS = 3  # a worker that ended while idle costs a request nothing but the start of the next

# What starts a worker: an encoded plan, the worker's end of the socket, which stays the caller's, and which
# BACK_END_* enforces the plan.
StartWorker = Callable[[bytes, int, int], WorkerProcess]
# Which one does for a plan, or why none does.
ChooseBackEnd = Callable[[ViewPlan], int | str]


class _Slot:
    """The place of one worker: the plan, the worker itself if it lives, and who waits for it."""

    __slots__ = ("generation", "last_used", "long", "plan", "record", "turn", "waiting", "worker")

    def __init__(self, plan: ViewPlan, long: bool) -> None:
        self.plan = plan
        self.long = long  # for requests that may take long
        self.record = encode_plan(plan)
        self.worker: Worker | None = None
        self.generation = 0  # of the host's mounts when the worker was started
        self.turn = BoundedSemaphore(1)
        self.waiting = 0  # calls that have the turn or wait for it
        self.last_used = 0.0


def may_take_long(request: Request) -> bool:
    """Tell whether a request may have much to do: a tree, or a file to be copied."""
    return request.operation in (COPY, WALK) or (
        request.operation == REMOVE and bool(request.flags & RECURSIVE)
    )


class WorkerPool:
    """All workers of one server; `close` ends them."""

    def __init__(
        self,
        start: StartWorker,
        choose: ChooseBackEnd,
        generation: Callable[[], int],
        timeout_s: float,
        max_workers: int = MAX_WORKERS,
        idle_s: float = IDLE_S,
    ) -> None:
        """`generation` returns another number after every change of the host's mounts."""
        self._start = start
        self._choose = choose
        self._generation = generation
        self._timeout_s = timeout_s
        self._max_workers = max_workers
        self._idle_s = idle_s
        self._slots: dict[tuple[ViewPlan, bool], _Slot] = {}
        self._latest: _Slot | None = None  # most calls are for the plan of the one before
        self._room = Event()
        self._janitor: gevent.Greenlet[[], None] | None = None
        self._next_id = 0
        self._calls = 0  # that are under way or wait

    def call(self, plan: ViewPlan, request: Request) -> tuple[Reply, int | None]:
        """Have a request performed in the view of a plan; give it a number first.

        Returns the reply and the descriptor that came with it, which is the caller's.  Raises InternalError
        when the worker fails, or none becomes free in time, and what starting a worker raises.
        """
        slot = self._slot(plan, may_take_long(request))
        if slot.waiting > MAX_WAITING:
            raise InternalError(f"more than {MAX_WAITING} requests wait for one fs sandbox worker")
        slot.waiting += 1
        self._calls += 1
        try:
            if not slot.turn.acquire(timeout=self._timeout_s):
                raise InternalError(f"fs sandbox worker was busy for {self._timeout_s:g} s")
            try:
                return self._perform(slot, request)
            finally:
                slot.turn.release()
        finally:
            slot.waiting -= 1
            self._calls -= 1
            slot.last_used = time.monotonic()
            if not slot.waiting:
                self._room.set()

    def workers(self) -> list[Worker]:
        """Return the live workers."""
        return [slot.worker for slot in self._slots.values() if slot.worker is not None]

    def close(self) -> None:
        """End every worker."""
        for slot in list(self._slots.values()):
            self._drop(slot)
        janitor, self._janitor = self._janitor, None
        if janitor is not None:
            janitor.kill(block=False)

    def _perform(self, slot: _Slot, request: Request) -> tuple[Reply, int | None]:
        for _ in range(_ATTEMPTS):
            self._next_id += 1
            request.request_id = self._next_id
            worker = self._worker(slot)
            try:
                # Alone, a call is answered soonest by waiting for it; with others, by letting them go on.
                return worker.call(request, eager=self._calls == 1)
            except NotBegun:
                continue
            finally:
                if not worker.alive:
                    slot.worker = None
        raise InternalError("fs sandbox workers end before they begin")

    def _worker(self, slot: _Slot) -> Worker:
        """Return the worker of a slot, a new one if the host's mounts have changed since it was started."""
        generation = self._generation()
        worker = slot.worker
        if worker is not None and slot.generation != generation:
            worker.end()
            worker = None
        if worker is None or not worker.alive:
            slot.generation = generation
            worker = slot.worker = self._started(slot)
        return worker

    def _started(self, slot: _Slot) -> Worker:
        back_end = self._choose(slot.plan)
        if isinstance(back_end, str):
            raise InvalidRequest(f"failed to prepare fs sandbox: {back_end}")
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            process = self._start(slot.record, theirs.fileno(), back_end)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        if self._janitor is None:
            self._janitor = gevent.spawn(self._end_idle)
        return Worker(process, ours, self._timeout_s)

    # --- slots -------------------------------------------------------------------------------------------

    def _slot(self, plan: ViewPlan, long: bool) -> _Slot:
        latest = self._latest
        if latest is not None and latest.plan is plan and latest.long == long:
            return latest
        slot = self._slots.get((plan, long))
        if slot is None:
            self._make_room()
            # Another request may have made it meanwhile.
            slot = self._slots.setdefault((plan, long), _Slot(plan, long))
        self._latest = slot
        return slot

    def _make_room(self) -> None:
        """Wait until one more plan may have a worker; end the worker that was idle longest for it."""
        deadline = time.monotonic() + self._timeout_s
        while len(self._slots) >= self._max_workers:
            idle = [slot for slot in self._slots.values() if not slot.waiting]
            if idle:
                self._drop(min(idle, key=lambda slot: slot.last_used))
                continue
            self._room.clear()
            if not self._room.wait(max(0.0, deadline - time.monotonic())):
                raise InternalError(f"all {self._max_workers} fs sandbox workers are busy")

    def _drop(self, slot: _Slot) -> None:
        self._slots.pop((slot.plan, slot.long), None)
        if self._latest is slot:
            self._latest = None
        worker, slot.worker = slot.worker, None
        if worker is not None:
            worker.end()

    def _end_idle(self) -> None:
        """End workers that nobody used for a while; end with the last one."""
        while self._slots:
            gevent.sleep(self._idle_s / 4)
            now = time.monotonic()
            for slot in list(self._slots.values()):
                if not slot.waiting and now - slot.last_used >= self._idle_s:
                    self._drop(slot)
        self._janitor = None
