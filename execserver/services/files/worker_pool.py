"""The live file workers: one for each sandbox plan in use, started on demand and ended when idle.

Requests of one plan wait for its worker in their order.  Requests that may take long have a second worker, so
that the others never wait for them.  There are at most `max_workers`.  If one more is needed, the worker that
was idle longest ends; if all are busy, the request waits.  Queues and waits are bounded; at the limit a
request is answered with an error.  Different plans never share a worker.
"""

from __future__ import annotations

import _socket
import time
from collections.abc import Callable

import gevent
from gevent.event import Event
from gevent.lock import BoundedSemaphore

from execserver.protocol.errors import InternalError, InvalidRequest
from execserver.sandbox.files.worker_records import COPY, RECURSIVE, REMOVE, WALK, Reply, Request
from execserver.sandbox.plan import SandboxPlan
from execserver.sandbox.plan_record import encode_plan
from execserver.services.files.worker import NotBegun, Worker, WorkerProcess
from execserver.zygote.confinement import Confinement

MAX_WORKERS = 16
MAX_WAITING = 256  # requests waiting for one worker, which answers some thousands a second
IDLE_S = 30.0
_ATTEMPTS = 3  # if a worker ended while idle, the request only waits for the start of the next one

# Starts a worker in a confinement, on the worker's end of a socket pair, which the caller keeps.
StartWorker = Callable[[Confinement, int], WorkerProcess]
# Returns the back end for a plan as a confinement without its plan, or the reason why there is none.
ChooseBackEnd = Callable[[SandboxPlan], Confinement | str]


class _Slot:
    """One worker's entry in the pool: its plan, the worker if it lives, and how many requests wait for it."""

    __slots__ = ("generation", "last_used", "long", "plan", "record", "turn", "waiting", "worker")

    def __init__(self, plan: SandboxPlan, long: bool) -> None:
        self.plan = plan
        self.long = long  # for requests that may take long
        self.record = encode_plan(plan)  # encoded once: a slot may start many workers
        self.worker: Worker | None = None
        self.generation = 0  # of the host's mounts when the worker was started
        self.turn = BoundedSemaphore(1)  # a worker performs one request at a time
        self.waiting = 0  # calls that have the turn or wait for it; a slot is idle at 0
        self.last_used = 0.0


def may_take_long(request: Request) -> bool:
    """Return whether a request may take long: it concerns a tree, or copies a file."""
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
        """`generation` returns a different number after every change of the host's mounts.

        `timeout_s` limits each wait: for a worker to become free, and for a sign of progress from it.
        """
        self._start = start
        self._choose = choose
        self._generation = generation
        self._timeout_s = timeout_s
        self._max_workers = max_workers
        self._idle_s = idle_s
        self._slots: dict[tuple[SandboxPlan, bool], _Slot] = {}
        self._latest: _Slot | None = None  # most calls have the plan of the call before
        self._room = Event()  # set when a slot has become idle
        self._stale_masks: gevent.Greenlet[[], None] | None = None
        self._next_id = 0
        self._calls = 0  # in progress or waiting, in all slots

    def call(self, plan: SandboxPlan, request: Request) -> tuple[Reply, int | None]:
        """Give a request its id and have it performed in the sandbox root of a plan.

        Returns the reply and the descriptor that came with it, which the caller owns.  Raises InternalError
        if the worker fails or none becomes free in time, and what starting a worker raises.
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
        stale_masks, self._stale_masks = self._stale_masks, None
        if stale_masks is not None:
            stale_masks.kill(block=False)

    def _perform(self, slot: _Slot, request: Request) -> tuple[Reply, int | None]:
        for _ in range(_ATTEMPTS):
            self._next_id += 1
            request.request_id = self._next_id
            worker = self._worker(slot)
            try:
                # A call that is alone waits in the event loop's thread, a millisecond at most: the answer
                # takes a tenth of that, and a turn of the loop would cost nearly as much again.
                return worker.call(request, eager=self._calls == 1)
            except NotBegun:
                continue  # nothing was done, so even a request that writes can be repeated
            finally:
                if not worker.alive:
                    slot.worker = None
        raise InternalError("fs sandbox workers end before they begin")

    def _worker(self, slot: _Slot) -> Worker:
        """Return the worker of a slot, a new one if the host's mounts have changed since it was started."""
        # A worker's mount namespace does not follow the host's: it would not see what is mounted later.
        generation = self._generation()
        worker = slot.worker
        if worker is not None and slot.generation != generation:
            worker.end()
            worker = None
        if worker is None or not worker.alive:
            slot.generation = generation  # read before the start: a change during it is noticed next time
            worker = slot.worker = self._started(slot)
        return worker

    def _started(self, slot: _Slot) -> Worker:
        chosen = self._choose(slot.plan)
        if isinstance(chosen, str):
            raise InvalidRequest(f"failed to prepare fs sandbox: {chosen}")
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            process = self._start(chosen.with_plan(slot.record), theirs.fileno())
        except BaseException:  # also when the greenlet of the request is killed
            ours.close()
            raise
        finally:
            theirs.close()  # the worker must hold the only copy, so that its end closes the socket
        ours.setblocking(False)
        if self._stale_masks is None:
            self._stale_masks = gevent.spawn(self._end_idle)
        return Worker(process, ours, self._timeout_s)

    # --- slots -------------------------------------------------------------------------------------------

    def _slot(self, plan: SandboxPlan, long: bool) -> _Slot:
        latest = self._latest
        if latest is not None and latest.plan is plan and latest.long == long:
            return latest
        slot = self._slots.get((plan, long))
        if slot is None:
            self._make_room()
            # Another request may have made the slot while this one waited for room.
            slot = self._slots.setdefault((plan, long), _Slot(plan, long))
        self._latest = slot
        return slot

    def _make_room(self) -> None:
        """Wait until one more plan may have a worker; end the worker that was idle longest to make room."""
        deadline = time.monotonic() + self._timeout_s
        while len(self._slots) >= self._max_workers:
            idle = [slot for slot in self._slots.values() if not slot.waiting]
            if idle:
                self._drop(min(idle, key=lambda slot: slot.last_used))
                continue
            # No slot is idle now, and nothing switches greenlets between that look and the wait.
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
        """End workers that nobody used for `idle_s` seconds; return when no slot is left."""
        while self._slots:
            gevent.sleep(self._idle_s / 4)
            now = time.monotonic()
            for slot in list(self._slots.values()):
                if not slot.waiting and now - slot.last_used >= self._idle_s:
                    self._drop(slot)
        self._stale_masks = None
