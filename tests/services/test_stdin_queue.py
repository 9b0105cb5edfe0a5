from __future__ import annotations

import fcntl
import os
import tty
from collections.abc import Iterator

import gevent
import pytest

from execserver.services.running import stdin_queue as stdin_queue_module
from execserver.services.running.stdin_queue import QUEUED_WRITES, StdinQueue
from tests.support.greenlets import turns
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("loop_failures")


class Piped:
    """A queue that writes into a small pipe, and the end that the process reads."""

    def __init__(self) -> None:
        self.reader, self.fd = os.pipe()
        fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(self.reader, False)
        os.set_blocking(self.fd, False)
        self.queue = StdinQueue(self.fd, owned=True)

    def block(self) -> None:
        """Fill the pipe, so that what is put next waits in the queue."""
        assert self.queue.put(b"#" * 4096)

    def fill(self) -> None:
        """Reach the bound of writes: what is put next waits in `put`."""
        self.block()
        for _ in range(QUEUED_WRITES):
            assert self.queue.put(b".")
        assert not self.queue.has_room

    def put_soon(self, data: bytes) -> gevent.Greenlet[..., bool]:
        """Put in a greenlet, which then waits if it must."""
        greenlet = gevent.spawn(self.queue.put, data)
        turns()
        return greenlet

    def read(self) -> bytes:
        """Read everything that comes until nothing more does."""
        data = b""
        while True:
            try:
                more = os.read(self.reader, 65536)
            except BlockingIOError:
                turns()
                try:
                    more = os.read(self.reader, 65536)
                except BlockingIOError:
                    return data.strip(b"#.")
            if not more:
                return data.strip(b"#.")
            data += more

    def read_once(self) -> None:
        """Empty the pipe, without giving the queue a turn."""
        assert os.read(self.reader, 65536)

    def at_end(self) -> bool:
        """Tell whether the reader sees the end of its input."""
        try:
            return os.read(self.reader, 1) == b""
        except BlockingIOError:
            return False

    def close_reader(self) -> None:
        os.close(self.reader)
        self.reader = -1


@pytest.fixture
def piped() -> Iterator[Piped]:
    made = Piped()
    yield made
    made.queue.close()
    turns()
    if made.reader >= 0:
        made.close_reader()


def test_what_comes_behind_an_expected_write_waits_for_it(piped: Piped) -> None:
    piped.fill()
    piped.queue.expect()
    piped.read()
    assert not piped.queue.has_room  # the write that found none has no turn yet
    piped.queue.arrived()
    assert piped.queue.has_room


def test_an_expected_write_that_never_comes_keeps_nobody_waiting(piped: Piped) -> None:
    piped.queue.expect()
    assert piped.queue.put(b"other")
    piped.queue.finish()
    assert piped.read() == b"other"
    assert piped.queue.gone


def test_bytes_are_written_at_once(piped: Piped) -> None:
    assert piped.queue.put(b"now")
    assert os.read(piped.reader, 100) == b"now"


def test_an_empty_write_is_fine(piped: Piped) -> None:
    assert piped.queue.put(b"")
    assert not piped.at_end()


def test_what_the_pipe_does_not_take_is_written_when_it_does(piped: Piped) -> None:
    piped.block()
    for number in range(10):
        assert piped.queue.put(b"%d;" % number * 500)
    assert piped.queue.has_room
    assert piped.read() == b"".join(b"%d;" % number * 500 for number in range(10))


def test_of_a_write_that_fits_in_part_the_rest_follows_before_others(piped: Piped) -> None:
    assert piped.queue.put(b"a" * 6000)
    piped.queue.put_at_once(b"b")
    assert piped.read() == b"a" * 6000 + b"b"


@pytest.mark.parametrize(("size", "count"), [(1, QUEUED_WRITES), (10_000, 4)])
def test_at_either_bound_a_write_waits(
    piped: Piped, monkeypatch: pytest.MonkeyPatch, size: int, count: int
) -> None:
    monkeypatch.setattr(stdin_queue_module, "QUEUED_BYTES", 40_000)
    piped.block()
    for number in range(count):
        assert piped.queue.has_room, number
        assert piped.queue.put(b"." * size)
    assert not piped.queue.has_room
    late = piped.put_soon(b"late")
    assert not late.ready()
    assert piped.read() == b"late"
    assert late.get(timeout=20) is True
    assert piped.queue.has_room


def test_writes_that_wait_are_served_in_their_order(piped: Piped) -> None:
    piped.fill()
    waiting = [piped.put_soon(b"<%d>" % number) for number in range(5)]
    assert piped.read() == b"<0><1><2><3><4>"
    assert [each.get(timeout=20) for each in waiting] == [True] * 5


def test_a_write_that_comes_later_does_not_overtake_those_that_wait(piped: Piped) -> None:
    piped.fill()
    first = piped.put_soon(b"<first>")
    piped.read_once()
    piped.queue._write()  # as the event loop does now; the first one has the turn, but has not run yet
    assert not piped.queue.has_room
    second = piped.put_soon(b"<second>")
    assert piped.read() == b"<first><second>"
    assert (first.get(timeout=20), second.get(timeout=20)) == (True, True)


def test_a_write_that_is_not_wanted_any_more_is_left_out(piped: Piped) -> None:
    piped.fill()
    wanted = True
    unwanted = gevent.spawn(piped.queue.put, b"<unwanted>", lambda: wanted)
    turns()
    other = piped.put_soon(b"<other>")
    wanted = False
    assert piped.read() == b"<other>"
    assert (unwanted.get(timeout=20), other.get(timeout=20)) == (False, True)


def test_a_write_that_is_given_up_while_it_waits_leaves_its_place(piped: Piped) -> None:
    """As when its client leaves: those behind it and later ones must go on."""
    piped.fill()
    given_up, kept = piped.put_soon(b"<given up>"), piped.put_soon(b"<kept>")
    given_up.kill()
    assert piped.read() == b"<kept>"
    assert kept.get(timeout=20) is True
    assert piped.queue.has_room
    assert piped.put_soon(b"<later>").get(timeout=20) is True
    assert piped.read() == b"<later>"


def test_a_write_that_is_given_up_when_its_turn_has_come_passes_it_on(piped: Piped) -> None:
    piped.fill()
    given_up, kept = piped.put_soon(b"<given up>"), piped.put_soon(b"<kept>")
    piped.read_once()

    def write_and_kill() -> None:
        piped.queue._write()  # as the event loop does now
        given_up.throw(gevent.GreenletExit)

    gevent.get_hub().loop.run_callback(write_and_kill)
    turns()
    assert piped.read() == b"<kept>"
    assert kept.get(timeout=20) is True
    assert piped.queue.has_room


def test_the_end_comes_behind_what_is_queued(piped: Piped) -> None:
    piped.block()
    piped.queue.put(b"queued")
    piped.queue.finish()
    assert piped.queue.put(b"too late") is False
    assert piped.read() == b"queued"
    assert piped.at_end()


def test_the_end_comes_behind_the_writes_that_wait(piped: Piped) -> None:
    piped.fill()
    waiting = [piped.put_soon(b"<%d>" % number) for number in range(3)]
    piped.queue.finish()
    assert piped.queue.put(b"too late") is False
    assert piped.read() == b"<0><1><2>"
    assert [each.get(timeout=20) for each in waiting] == [True] * 3
    assert piped.at_end()


def test_the_end_does_not_wait_for_a_write_that_is_given_up(piped: Piped) -> None:
    piped.fill()
    waiting = piped.put_soon(b"<given up>")
    piped.queue.finish()
    waiting.kill()
    piped.read()
    assert piped.at_end()


def test_with_nothing_queued_the_end_comes_at_once(piped: Piped) -> None:
    piped.queue.finish()
    assert (piped.queue.gone, piped.at_end()) == (True, True)
    piped.queue.finish()


def test_closing_drops_what_is_queued_and_wakes_who_waits(piped: Piped) -> None:
    piped.fill()
    waiting = [piped.put_soon(b"x") for _ in range(3)]
    piped.queue.close()
    assert [each.get(timeout=20) for each in waiting] == [False] * 3
    assert os.read(piped.reader, 65536) == b"#" * 4096
    assert piped.at_end()
    assert piped.queue.has_room
    assert piped.queue.put(b"later") is False


def test_the_descriptor_is_closed_once(piped: Piped) -> None:
    piped.queue.close()
    reused = os.dup(piped.reader)
    assert reused == piped.fd
    piped.queue.close()
    piped.queue.finish()
    os.fstat(reused)
    os.close(reused)


def test_a_dead_reader_makes_writes_vanish(piped: Piped) -> None:
    piped.close_reader()
    assert piped.queue.put(b"accepted and gone") is True
    assert piped.queue.gone
    assert piped.queue.put(b"gone") is False


def test_a_reader_that_dies_while_writes_wait_frees_them(piped: Piped) -> None:
    piped.fill()
    waiting = [piped.put_soon(b"x") for _ in range(2)]
    piped.close_reader()
    assert [each.get(timeout=20) for each in waiting] == [False, False]
    assert piped.queue.gone


def test_a_terminals_descriptor_is_only_written_to() -> None:
    master, slave = os.openpty()
    tty.setraw(slave)
    os.set_blocking(master, False)
    queue = StdinQueue(master, owned=False)
    assert queue.put(b"typed")
    assert os.read(slave, 100) == b"typed"
    queue.close()
    os.fstat(master)
    os.close(slave)
    os.close(master)


def test_typing_into_a_terminal_that_is_not_read_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdin_queue_module, "QUEUED_WRITES", 4)
    master, slave = os.openpty()
    tty.setraw(slave)
    os.set_blocking(master, False)
    os.set_blocking(slave, False)
    queue = StdinQueue(master, owned=False)
    sent = 0
    while queue.has_room:
        assert queue.put(b"k" * 1000)
        sent += 1000
    late = gevent.spawn(queue.put, b"!")
    received = b""

    def all_read() -> bool:
        nonlocal received
        try:
            received += os.read(slave, 65536)
        except BlockingIOError:
            pass
        return received.endswith(b"!")

    wait_until(all_read, pause=gevent.sleep)
    assert late.get(timeout=20) is True
    assert len(received) == sent + 1
    queue.close()
    os.close(slave)
    os.close(master)
