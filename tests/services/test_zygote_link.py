"""A link to a zygote that the test plays: answers that come late, never, or in pieces of trouble."""

from __future__ import annotations

import _socket
import fcntl
import os
import signal
import sys
import termios
import time
from collections.abc import Iterator

import gevent
import pytest

from execserver.protocol.errors import InternalError
from execserver.services.launch.child import Child, Streams
from execserver.services.launch.zygote_link import AnswerTimeout, LinkState, PendingStart, ZygoteLink
from execserver.zygote.channel import receive_record, send_record
from execserver.zygote.launch import ZygoteProcess
from execserver.zygote.records import (
    Exited,
    Failed,
    Record,
    Signalled,
    SignalRequest,
    SpawnRequest,
    Started,
    decode,
    encode,
)
from execserver.zygote.stages import STAGE_EXEC
from tests.support.waiting import wait_until


class Played:
    """A link, and the zygote's end of its socket."""

    def __init__(self) -> None:
        ours, self.zygote = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.zygote.settimeout(20)
        self.ended: list[ZygoteLink] = []
        self.link = ZygoteLink(ZygoteProcess(os.getpid(), ours.detach()), self.ended.append)

    def child(self) -> Child:
        return Child(self.link.next_id(), False, Streams(), self.link)

    def begin(self, child: Child, timeout: float = 5.0) -> PendingStart:
        deadline = time.monotonic_ns() + int(timeout * 1e9)
        request = SpawnRequest(child.child_id, [b"x"], [], b"/", deadline_ns=deadline)
        return self.link.begin_start(child, request, [], 1.0)

    def started(self, pid: int = 4711) -> Child:
        child = self.child()
        start = self.begin(child)
        self.received()
        self.send(Started(child.child_id, pid))
        assert start.answer() is None
        return start.accept()

    def send(self, record: Record) -> None:
        send_record(self.zygote, encode(record))
        wait_until(lambda: not self._unread, pause=gevent.sleep)

    @property
    def _unread(self) -> int:
        """What the link has not read yet; it handles what it reads in the same turn of the loop."""
        return int.from_bytes(fcntl.ioctl(self.zygote, termios.TIOCOUTQ, bytes(4)), sys.byteorder)

    def received(self) -> Record:
        data = receive_record(self.zygote)
        assert data is not None
        return decode(data[0])

    def close(self) -> None:
        self.zygote.close()
        wait_until(lambda: self.ended, pause=gevent.sleep)


@pytest.fixture
def played() -> Iterator[Played]:
    made = Played()
    yield made
    made.close()


def state_of(played: Played) -> LinkState:
    """The state as it is now; the type checker would hold on to an earlier one."""
    return played.link.state


def test_a_start_is_asked_for_and_answered(played: Played) -> None:
    child = played.child()
    start = played.begin(child)
    request = played.received()
    assert isinstance(request, SpawnRequest)
    assert request.request_id == child.child_id
    assert played.link.hanging
    assert not start.answered_within(0.001)
    played.send(Started(child.child_id, 4711))
    assert start.answer() is None
    assert start.accept() is child
    assert (child.pid, played.link.children, played.link.hanging) == (4711, {child.child_id: child}, False)


def test_a_refused_start_leaves_no_child(played: Played) -> None:
    child = played.child()
    start = played.begin(child)
    played.send(Failed(child.child_id, STAGE_EXEC, 2))
    assert start.answer() == Failed(child.child_id, STAGE_EXEC, 2)
    start.abandon()
    assert (played.link.children, played.link.hanging) == ({}, False)


def test_a_start_that_succeeds_after_it_was_given_up_is_killed(played: Played) -> None:
    child = played.child()
    start = played.begin(child, timeout=0.01)
    played.received()
    with pytest.raises(AnswerTimeout):
        start.answer()
    start.abandon()
    assert [played.link.hanging] == [True]
    played.send(Started(child.child_id, 4711))
    assert played.received() == SignalRequest(0, child.child_id, signal.SIGKILL)
    assert not played.link.hanging
    played.send(Exited(child.child_id, 4711, 9))
    assert played.link.children == {}


def test_a_start_given_up_after_its_success_is_killed(played: Played) -> None:
    child = played.child()
    start = played.begin(child)
    played.received()
    played.send(Started(child.child_id, 4711))
    start.abandon()
    assert played.received() == SignalRequest(0, child.child_id, signal.SIGKILL)


def test_an_exit_in_the_same_moment_as_the_answer_is_kept(played: Played) -> None:
    child = played.child()
    start = played.begin(child)
    send_record(played.zygote, encode(Started(child.child_id, 4711)))
    send_record(played.zygote, encode(Exited(child.child_id, 4711, 3 << 8, survivors=True)))
    assert start.answer() is None
    codes: list[int] = []
    start.accept().on_exit(codes.append)
    wait_until(lambda: codes, pause=gevent.sleep)
    assert (codes, child.survivors) == ([3], True)


def test_a_signal_waits_for_its_answer(played: Played) -> None:
    child = played.started()
    for delivered in (True, False):
        asking = gevent.spawn(child.signal, signal.SIGINT)
        gevent.sleep(0)
        request = played.received()
        assert isinstance(request, SignalRequest)
        assert (request.child_id, request.signum) == (child.child_id, signal.SIGINT)
        played.send(Signalled(request.request_id, delivered))
        assert asking.get(timeout=20) is delivered


def test_a_signal_the_kernel_refused_raises(played: Played) -> None:
    child = played.started()
    asking = gevent.spawn(child.signal, signal.SIGINT)
    gevent.sleep(0)
    request = played.received()
    assert isinstance(request, SignalRequest)
    played.send(Signalled(request.request_id, False, 1))
    with pytest.raises(PermissionError):
        asking.get(timeout=20)


def test_without_an_answer_this_process_signals_only_who_is_there(played: Played) -> None:
    child = played.started(pid=2**22 + 1)
    assert not child.signal(signal.SIGINT)


def test_the_end_of_the_zygote_ends_what_is_asked(played: Played) -> None:
    child = played.started()
    start = played.begin(played.child())
    asking = gevent.spawn(child.signal, signal.SIGINT)
    gevent.sleep(0)
    played.close()
    with pytest.raises(InternalError, match="ended unexpectedly"):
        start.answer()
    start.abandon()
    assert asking.get(timeout=20) is False
    assert state_of(played) is LinkState.LOST
    assert played.ended == [played.link]
    assert child.child_id in played.link.children
    with pytest.raises(InternalError, match="ended unexpectedly"):
        played.begin(played.child())
    assert child.signal(signal.SIGINT) is False
    played.link.signal_soon(child, signal.SIGINT)


def test_an_exit_told_just_before_the_end_is_taken_although_something_was_left_unread(played: Played) -> None:
    child = played.started()
    send_record(played.zygote, encode(Exited(child.child_id, child.pid, 7 << 8)))
    played.link.signal_soon(child, signal.SIGTERM)  # which the zygote never reads
    played.close()
    assert (child.exit_code, played.link.children) == (7, {})


def test_a_retired_link_closes_after_its_last_child(played: Played) -> None:
    child = played.started()
    start = played.begin(played.child())
    played.received()
    played.link.retire()
    assert state_of(played) is LinkState.RETIRED
    start.abandon()
    played.send(Exited(child.child_id, 4711, 0))
    assert state_of(played) is LinkState.RETIRED  # the given-up start is unanswered
    played.send(Failed(child.child_id + 1, STAGE_EXEC, 110))
    assert state_of(played) is LinkState.CLOSED
    assert receive_record(played.zygote) is None
    assert played.ended == []
    played.close()
    assert state_of(played) is LinkState.CLOSED


def test_a_retired_link_that_answers_can_work_again(played: Played) -> None:
    child = played.started()
    played.link.retire()
    assert not played.link.hanging
    played.link.reactivate()
    assert state_of(played) is LinkState.ACTIVE
    assert played.link.children == {child.child_id: child}


def test_a_socket_that_stays_full_is_a_timeout(played: Played) -> None:
    child = played.started()
    for _ in range(5000):
        played.link.signal_soon(child, signal.SIGINT)
    request = SpawnRequest(played.link.next_id(), [b"x"], [], b"/")
    with pytest.raises(AnswerTimeout):
        played.link.begin_start(played.child(), request, [], 0.01)
    assert not played.link.hanging


def test_rubbish_from_the_zygote_ends_the_link(
    played: Played, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    played.zygote.send(b"rubbish")
    wait_until(lambda: played.ended, pause=gevent.sleep)
    assert state_of(played) is LinkState.LOST
    assert "RecordError" in capfd.readouterr().err
