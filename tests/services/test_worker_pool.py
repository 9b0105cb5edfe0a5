"""The live file workers, as real processes without a view."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import gevent
import pytest

from execserver.protocol.errors import InternalError, InvalidRequest
from execserver.sandbox.files import worker_records as records
from execserver.sandbox.plan import SandboxPlan
from execserver.services.files import worker_pool
from execserver.services.files.worker_pool import WorkerPool
from execserver.zygote.confinement import NATIVE, Confinement
from tests.support.greenlets import turns
from tests.support.plain_workers import PROGRAM, PlainWorker, plan
from tests.support.waiting import wait_until


class Pool(WorkerPool):
    """A pool over plain workers, which notes whom it started."""

    def __init__(self, **options: float) -> None:
        self.started: list[PlainWorker] = []
        self.mounts = 1
        self.refusal = ""
        self.program = PROGRAM
        options.setdefault("timeout_s", 10.0)
        super().__init__(
            self._start_plain,
            lambda view: self.refusal or Confinement(NATIVE),
            lambda: self.mounts,
            **options,  # type: ignore[arg-type]
        )

    def _start_plain(self, confinement: Confinement, sock_fd: int) -> PlainWorker:
        self.started.append(PlainWorker(confinement.plan, sock_fd, self.program))
        if self.program != PROGRAM:
            self.started[-1].wait()
        return self.started[-1]

    def look(self, view: SandboxPlan, path: bytes = b"/") -> records.Reply:
        """Ask for metadata."""
        return self.call(view, records.Request(0, records.GET_METADATA, path))[0]

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self.workers()]


@contextmanager
def pool(**options: float) -> Iterator[Pool]:
    made = Pool(**options)
    try:
        yield made
    finally:
        made.close()
        for worker in made.started:
            worker.kill()


def other(number: int) -> SandboxPlan:
    """Return one of many plans that differ."""
    return plan(globs=(b"/never/%d" % number,))


def test_equal_plans_share_a_worker_and_others_never_do() -> None:
    with pool() as made:
        for view in (plan(), plan(), other(1), plan(), other(1)):
            assert isinstance(made.look(view), records.Metadata)
        assert len(made.started) == 2
        assert made.pids == [worker.pid for worker in made.started]


def test_an_idle_worker_ends_and_the_next_call_gets_a_new_one() -> None:
    with pool(idle_s=0.1) as made:
        made.look(plan())
        wait_until(lambda: not made.workers(), pause=gevent.sleep)
        assert made.started[0].exited
        made.look(plan())
        assert len(made.started) == 2


def test_a_worker_that_ended_meanwhile_is_replaced_unseen() -> None:
    with pool() as made:
        made.look(plan())
        os.kill(made.started[0].pid, signal.SIGKILL)
        wait_until(lambda: made.started[0].exited)
        assert isinstance(made.look(plan()), records.Metadata)
        assert len(made.started) == 2


def test_a_stuck_worker_costs_its_call_only() -> None:
    with pool(timeout_s=0.5) as made:
        with gevent.Timeout(40):
            wait_until(lambda: _looks(made), pause=gevent.sleep)
            stuck = made.workers()[0].process.pid
            os.kill(stuck, signal.SIGSTOP)
            with pytest.raises(InternalError, match=r"gave no answer for 0\.5 s"):
                made.look(plan())
            wait_until(lambda: _looks(made), pause=gevent.sleep)
        assert stuck not in made.pids


def _looks(made: Pool) -> bool:
    try:
        return isinstance(made.look(plan()), records.Metadata)
    except InternalError:
        return False  # the machine was slower than the limit


def test_the_worker_idle_longest_ends_for_one_more_plan() -> None:
    with pool(max_workers=2) as made:
        for number in (1, 2, 1, 3):
            made.look(other(number))
        assert made.pids == [made.started[0].pid, made.started[2].pid]


def test_when_all_are_busy_the_next_plan_waits() -> None:
    with pool(max_workers=1) as made:
        made.look(other(1))
        made.started[0].stop()
        busy = gevent.spawn(made.look, other(1))
        turns()
        waiting = gevent.spawn(made.look, other(2))
        turns()
        assert not waiting.ready()
        os.kill(made.started[0].pid, signal.SIGCONT)
        assert isinstance(busy.get(timeout=20), records.Metadata)
        assert isinstance(waiting.get(timeout=20), records.Metadata)
        assert made.pids == [made.started[1].pid]


def test_waiting_for_a_worker_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "MAX_WAITING", 2)
    with pool(max_workers=1) as made:
        made.look(plan())
        made.started[0].stop()
        calls = [gevent.spawn(made.look, plan()) for _ in range(3)]
        turns()
        with pytest.raises(InternalError, match="more than 2 requests wait"):
            made.look(plan())
        os.kill(made.started[0].pid, signal.SIGCONT)
        assert [type(call.get(timeout=20)) for call in calls] == [records.Metadata] * 3


def test_waiting_for_room_ends_in_an_error() -> None:
    with pool(max_workers=1, timeout_s=2.0) as made:
        made.look(plan())
        made.started[0].stop()
        busy = gevent.spawn(made.look, plan())
        turns()
        made._timeout_s = 0.05
        with pytest.raises(InternalError, match="all 1 fs sandbox workers are busy"):
            made.look(other(1))
        busy.kill()


def test_short_requests_do_not_wait_for_long_ones(tmp_path: os.PathLike[str]) -> None:
    root = os.fsencode(tmp_path)
    with pool() as made:
        made.look(plan())
        walk = records.Request(0, records.WALK, root, limits=(1, 10, 10))
        made.call(plan(), walk)
        assert len(made.started) == 2
        made.started[1].stop()
        waiting = gevent.spawn(made.call, plan(), walk)
        turns()
        assert isinstance(made.look(plan()), records.Metadata)
        assert not waiting.ready()
        os.kill(made.started[1].pid, signal.SIGCONT)
        assert isinstance(waiting.get(timeout=20)[0], records.Walked)


def test_requests_of_one_plan_are_answered_in_their_order() -> None:
    with pool() as made:
        answered: list[int] = []

        def ask(number: int) -> None:
            made.look(plan())
            answered.append(number)

        gevent.joinall([gevent.spawn(ask, number) for number in range(20)], timeout=20, raise_error=True)
        assert answered == list(range(20))
        assert len(made.started) == 1


def test_a_change_of_the_mounts_ends_the_worker_that_does_not_see_it() -> None:
    with pool() as made:
        made.look(plan())
        made.mounts += 1
        made.look(plan())
        assert made.pids == [made.started[1].pid]
        assert made.started[0].exited


def test_where_nothing_makes_views_nothing_is_started() -> None:
    with pool() as made:
        made.refusal = "no user namespaces"
        with pytest.raises(InvalidRequest, match="failed to prepare fs sandbox: no user namespaces"):
            made.look(plan())
        assert made.started == []


def test_workers_that_never_begin_are_given_up() -> None:
    with pool() as made:
        made.program = "raise SystemExit"
        with pytest.raises(InternalError, match="end before they begin"):
            made.look(plan())
        assert len(made.started) == 3
        made.program = PROGRAM
        assert isinstance(made.look(plan()), records.Metadata)


def test_large_listings_arrive_whole(tmp_path: os.PathLike[str]) -> None:
    names = sorted(f"{'n' * 100}{number}" for number in range(3000))
    for name in names:
        os.close(os.open(os.path.join(tmp_path, name), os.O_CREAT | os.O_WRONLY))
    with pool() as made:
        reply, _ = made.call(plan(), records.Request(0, records.READ_DIRECTORY, os.fsencode(tmp_path)))
        assert isinstance(reply, records.Entries)
        assert sorted(name for name, _, _ in reply.entries) == names


def test_a_thousand_calls_leave_nothing_open(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"f")
    with pool() as made:
        made.call(plan(), records.Request(0, records.CREATE_DIRECTORY, path + b"d"))
        worker = made.started[0].pid
        before = len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{worker}/fd"))
        for number in range(1000):
            _, fd = made.call(plan(), records.Request(0, records.WRITE, path + b"%d" % (number % 10)))
            assert fd is not None
            os.close(fd)
            made.look(plan(), path + b"none")
        assert (len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{worker}/fd"))) == before
