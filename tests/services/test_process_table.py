from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Iterator

import gevent
import pytest

from execserver.eventloop.delay_queue import DelayQueue
from execserver.protocol.errors import InternalError, InvalidRequest
from execserver.protocol.templates import ProcessTemplates
from execserver.services.launch.spawner import SpawnSpec
from execserver.services.running.process import Process
from execserver.services.running.process_table import ProcessTable, Retention
from tests.services.fakes import FakeSink, FakeSpawner
from tests.support.greenlets import turns
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("loop_failures")


class Tabled:
    """A table over played processes, with a retention that is short enough to wait for when asked."""

    def __init__(self, spawner: FakeSpawner, retention_s: float = 60.0) -> None:
        self.spawner = spawner
        self.retention: Retention = DelayQueue(retention_s, lambda item: item[0].forget(item[1]))
        self.table = ProcessTable(spawner.as_spawner(), self.retention, 1024)
        self.sink = FakeSink()
        self.table.attachment.sink = self.sink

    def start(self, process_id: str, *, begin: bool = True) -> Process:
        """Start a process as a handler does."""
        spec = SpawnSpec([b"x"], {}, b"/")
        process = self.table.start(process_id, ["x"], spec, ProcessTemplates(process_id))
        if begin:
            process.begin()
        return process

    def heard(self) -> list[str]:
        """Return the methods of the notifications."""
        return [json.loads(message)["method"].removeprefix("process/") for message in self.sink.messages]


@pytest.fixture
def tabled(fake_spawner: FakeSpawner) -> Iterator[Tabled]:
    made = Tabled(fake_spawner)
    yield made
    made.table.end()
    fake_spawner.end()
    made.retention.close()


def refusal(tabled: Tabled, process_id: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        tabled.table.known(process_id)
    return caught.value.message


def test_processes_are_found_by_their_id(tabled: Tabled) -> None:
    first, second = tabled.start("a"), tabled.start("")
    assert tabled.table.find("a") is tabled.table.known("a") is first
    assert tabled.table.known("") is second
    assert list(tabled.table) == [("a", first), ("", second)]
    assert tabled.table.find("b") is None
    assert refusal(tabled, "b") == "unknown process id b"


def test_a_taken_id_is_refused(tabled: Tabled) -> None:
    tabled.start("a")
    with pytest.raises(InvalidRequest, match="process a already exists"):
        tabled.start("a")
    with pytest.raises(InvalidRequest, match="process a already exists"):
        tabled.table.check_free("a")
    tabled.table.check_free("b")
    assert len(tabled.spawner.runs) == 1


def test_tables_know_nothing_of_each_other(tabled: Tabled) -> None:
    other = Tabled(tabled.spawner)
    assert tabled.start("a") is not other.start("a")
    other.table.end()
    assert tabled.spawner.runs[0].signals == []


def test_a_failed_start_leaves_the_id_free(tabled: Tabled) -> None:
    tabled.spawner.failure = InternalError("no such program")
    with pytest.raises(InternalError, match="no such program"):
        tabled.start("a")
    assert not tabled.table.is_starting("a")
    tabled.spawner.failure = None
    tabled.start("a")


def test_an_id_is_taken_while_its_process_starts(tabled: Tabled) -> None:
    tabled.spawner.answers.clear()
    starting = gevent.spawn(tabled.start, "a")
    turns()
    assert tabled.table.is_starting("a")
    assert tabled.table.find("a") is None
    assert refusal(tabled, "a") == "process id a is starting"
    with pytest.raises(InvalidRequest, match="process a already exists"):
        tabled.start("a")
    tabled.spawner.answers.set()
    assert starting.get(timeout=20) is tabled.table.known("a")
    assert not tabled.table.is_starting("a")


def test_a_start_that_is_given_up_leaves_the_id_free(tabled: Tabled) -> None:
    tabled.spawner.answers.clear()
    starting = gevent.spawn(tabled.start, "a")
    turns()
    starting.kill()
    tabled.table.check_free("a")


def test_an_id_stays_taken_until_some_time_after_the_close(fake_spawner: FakeSpawner) -> None:
    tabled = Tabled(fake_spawner, retention_s=0.02)
    process = tabled.start("a")
    fake_spawner.runs[0].end()
    assert process.state.closed
    with pytest.raises(InvalidRequest, match="already exists"):
        tabled.start("a")
    assert tabled.table.known("a") is process
    wait_until(lambda: tabled.table.find("a") is None, pause=gevent.sleep)
    assert refusal(tabled, "a") == "unknown process id a"
    tabled.start("a")
    tabled.table.end()


def test_the_time_starts_with_the_close_not_with_the_exit(fake_spawner: FakeSpawner) -> None:
    tabled = Tabled(fake_spawner, retention_s=0.001)
    tabled.start("a")
    fake_spawner.runs[0].exit()
    gevent.sleep(0.01)
    assert tabled.table.find("a") is not None
    fake_spawner.runs[0].close()
    wait_until(lambda: tabled.table.find("a") is None, pause=gevent.sleep)


def test_ending_kills_every_process(tabled: Tabled) -> None:
    for process_id in "abc":
        tabled.start(process_id)
    runs = tabled.spawner.runs
    runs[1].end()
    tabled.table.end()
    assert [run.signals for run in runs] == [[9], [], [9]]
    assert [process_id for process_id, _ in tabled.table] == ["a", "c"]
    for run in (runs[0], runs[2]):
        run.exit(9)
    assert list(tabled.table) == []


def test_one_that_cannot_be_killed_does_not_save_the_others(tabled: Tabled) -> None:
    for process_id in "ab":
        tabled.start(process_id)
    tabled.spawner.signal_failure = PermissionError(1, "x")
    tabled.table.end()
    assert [run.signals for run in tabled.spawner.runs] == [[9], [9]]
    tabled.spawner.signal_failure = None


def test_nothing_is_kept_of_a_session_that_ended(tabled: Tabled) -> None:
    """Neither by the clock of the closed processes."""
    watched = weakref.ref(tabled.start("closed before"))
    tabled.start("runs")
    tabled.spawner.runs[0].end()
    assert len(tabled.retention) == 1
    tabled.table.end()
    tabled.spawner.runs[1].end(9)
    assert len(tabled.retention) == 0
    assert list(tabled.table) == []
    tabled.spawner.runs.clear()
    gc.collect()
    assert watched() is None


def test_a_process_that_starts_while_its_session_ends_is_ended(tabled: Tabled) -> None:
    tabled.spawner.answers.clear()
    starting = gevent.spawn(tabled.start, "late")
    turns()
    tabled.table.end()
    tabled.spawner.answers.set()
    process = starting.get(timeout=20)
    (run,) = tabled.spawner.runs
    assert run.signals == [9]
    run.exit(9)
    assert process.state.closed
    assert tabled.heard() == ["exited", "closed"]
    assert list(tabled.table) == []
