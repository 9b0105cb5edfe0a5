from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
import tty
from collections.abc import Callable, Iterator

import gevent
import pytest

from execserver.services.clients.attachment import Attachment
from execserver.services.running import output_pump as pump_module
from execserver.services.running.output_pump import CHUNK_BYTES, OutputPump
from tests.services.fakes import FakeSink
from tests.support.greenlets import is_active, turns
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("loop_failures")


class Pumped:
    """A pump over one descriptor, and what it published."""

    def __init__(self, fd: int, stream: str = "stdout", process_over: bool = True) -> None:
        self.fd = fd
        self.chunks: list[bytes] = []
        self.at_once: list[bool] = []
        self.ends: list[str] = []
        self.sink = FakeSink()
        self.pace = Attachment()
        self.pace.sink = self.sink
        self.process_over = process_over
        self.on_publish: Callable[[], None] = lambda: None
        os.set_blocking(fd, False)
        self.output_pump = OutputPump(
            stream, fd, self._publish, self.pace, self._ended, lambda: self.process_over
        )

    @property
    def output(self) -> bytes:
        return b"".join(self.chunks)

    def unread(self) -> int:
        """Return how many bytes wait in the pipe."""
        (count,) = struct.unpack("i", fcntl.ioctl(self.fd, termios.FIONREAD, b"\0" * 4))
        return int(count)

    def is_open(self) -> bool:
        """Tell whether the descriptor is still the pump's."""
        try:
            os.fstat(self.fd)
        except OSError:
            return False
        return True

    def _publish(self, stream: str, data: bytes, at_once: bool) -> None:
        assert stream == self.output_pump.stream
        self.chunks.append(data)
        self.at_once.append(at_once)
        self.on_publish()

    def _ended(self) -> None:
        assert self.is_open(), "told after the close: the number may mean something else by now"
        assert not is_active(self.output_pump._watcher), "the loop would watch a closed descriptor"
        self.ends.append("ended")


class Pipe:
    """A pipe with a pump at its reading end."""

    def __init__(self) -> None:
        reader, self.writer = os.pipe()
        self.pumped = Pumped(reader)

    def write(self, data: bytes) -> None:
        assert os.write(self.writer, data) == len(data)
        turns()

    def close(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1
        turns()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()
    made.pumped.sink.close()
    made.pumped.output_pump.stop()
    turns()


def test_output_is_published_as_it_comes(pipe: Pipe) -> None:
    one = pipe.pumped
    one.output_pump.start()
    for piece in (b"first", b"second\n", b"\0\xff"):
        pipe.write(piece)
    assert one.chunks == [b"first", b"second\n", b"\0\xff"]
    assert not one.output_pump.ended


def test_short_output_needs_no_greenlet_and_leaves_at_once(pipe: Pipe) -> None:
    one = pipe.pumped
    one.output_pump.start()
    started: list[object] = []
    one.on_publish = lambda: started.append(one.output_pump._greenlet)
    for piece in (b"one", b"two"):
        pipe.write(piece)
    assert started == [None, None]
    assert one.at_once == [True, True]


@pytest.mark.parametrize("waited", [False, True])
def test_after_a_few_chunks_of_a_flood_the_loop_looks_for_others(pipe: Pipe, waited: bool) -> None:
    fcntl.fcntl(pipe.writer, fcntl.F_SETPIPE_SZ, 8 * CHUNK_BYTES)
    one = pipe.pumped
    if waited:
        one.sink.fill()
    events: list[str] = []
    key, typed = os.pipe()
    watcher = gevent.get_hub().loop.io(key, 1)

    def take() -> None:
        os.read(key, 1)
        events.append("key")

    def published() -> None:
        events.append("chunk")
        if events == ["chunk"]:
            os.write(typed, b"x")

    one.on_publish = published
    watcher.start(take)
    try:
        one.output_pump.start()
        assert os.write(pipe.writer, bytes(8 * CHUNK_BYTES)) == 8 * CHUNK_BYTES
        turns()
        one.sink.read()
        wait_until(lambda: events.count("chunk") == 8, pause=gevent.sleep)
    finally:
        watcher.stop()
        os.close(key)
        os.close(typed)
    assert "key" in events[:6]


def test_a_little_is_published_while_floods_wait_for_a_slow_client(pipe: Pipe) -> None:
    one = pipe.pumped
    one.output_pump.start()
    one.sink.lags = True
    for piece in (b"echo", bytes(5000)):
        pipe.write(piece)
    assert [len(chunk) for chunk in one.chunks] == [4, 4092, 908]
    assert one.sink.waits == 1  # for the last only
    one.sink.lags = False
    pipe.write(b"x")
    one.sink.lags = True
    pipe.write(b"y")  # again ahead
    assert (one.chunks[3:], one.sink.waits) == ([b"x", b"y"], 1)


def test_a_flood_is_not_ahead_of_other_output(pipe: Pipe) -> None:
    one = pipe.pumped
    one.output_pump.start()
    pipe.write(bytes(10_000))
    waits = one.sink.waits
    one.sink.lags = True
    pipe.write(bytes(10_000))
    assert [len(chunk) for chunk in one.chunks] == [10_000, 10_000]
    assert one.sink.waits > waits


def test_nothing_is_ahead_without_room(pipe: Pipe) -> None:
    one = pipe.pumped
    one.output_pump.start()
    one.sink.fill()
    pipe.write(b"echo")
    assert (one.chunks, one.sink.waits) == ([], 1)


def test_nothing_is_read_before_the_start(pipe: Pipe) -> None:
    pipe.write(b"early")
    assert (pipe.pumped.chunks, pipe.pumped.unread()) == ([], 5)
    pipe.pumped.output_pump.start()
    turns()
    assert pipe.pumped.chunks == [b"early"]


def test_at_the_end_the_descriptor_is_closed_once(pipe: Pipe) -> None:
    one = pipe.pumped
    one.output_pump.start()
    pipe.write(b"last")
    pipe.close()
    assert (one.chunks, one.ends, one.output_pump.ended, one.is_open()) == ([b"last"], ["ended"], True, False)
    reused = os.dup(0)  # perhaps the same number; it must stay open
    one.output_pump.stop()
    one.output_pump.drain(100)
    os.fstat(reused)
    os.close(reused)
    assert one.ends == ["ended"]


def test_a_chunk_has_a_bound(pipe: Pipe) -> None:
    fcntl.fcntl(pipe.writer, fcntl.F_SETPIPE_SZ, 4 * CHUNK_BYTES)
    pipe.write(b"x" * (2 * CHUNK_BYTES + 1))
    pipe.pumped.output_pump.start()
    turns()
    assert [len(chunk) for chunk in pipe.pumped.chunks] == [CHUNK_BYTES, CHUNK_BYTES, 1]


def test_output_stays_in_the_pipe_while_there_is_no_room(pipe: Pipe) -> None:
    one = pipe.pumped
    one.output_pump.start()
    pipe.write(b"1")
    one.sink.fill()
    pipe.write(b"2")
    pipe.write(b"3")
    assert (one.chunks, one.unread()) == ([b"1"], 2)
    one.sink.read()
    assert (one.chunks, one.unread()) == ([b"1", b"23"], 0)


def test_draining_reads_what_is_there_without_waiting(pipe: Pipe) -> None:
    one = pipe.pumped
    one.sink.fill()
    one.output_pump.start()
    pipe.write(b"written before the exit")
    one.output_pump.drain(1000)
    assert one.chunks == [b"written before the exit"]
    one.output_pump.drain(1000)
    assert not one.output_pump.ended


def test_draining_ends_the_pump_at_the_end(pipe: Pipe) -> None:
    one = pipe.pumped
    one.output_pump.start()
    turns()
    os.write(pipe.writer, b"last")
    os.close(pipe.writer)
    pipe.writer = -1
    one.output_pump.drain(1000)
    assert (one.chunks, one.ends, one.is_open()) == ([b"last"], ["ended"], False)
    turns()
    assert one.ends == ["ended"]


def test_draining_has_a_bound(pipe: Pipe) -> None:
    fcntl.fcntl(pipe.writer, fcntl.F_SETPIPE_SZ, 4 * CHUNK_BYTES)
    pipe.write(b"x" * (3 * CHUNK_BYTES))
    pipe.pumped.output_pump.drain(CHUNK_BYTES + 1)
    assert len(pipe.pumped.output) == 2 * CHUNK_BYTES


def test_stopping_loses_what_is_unread_and_closes(pipe: Pipe) -> None:
    one = pipe.pumped
    one.sink.fill()
    one.output_pump.start()
    pipe.write(b"lost")
    one.output_pump.stop()
    assert (one.ends, one.is_open()) == (["ended"], False)
    one.sink.read()
    assert one.chunks == []


@pytest.mark.parametrize("started", [True, False])
def test_a_pump_can_be_stopped_before_it_ran(pipe: Pipe, started: bool) -> None:
    if started:
        pipe.pumped.output_pump.start()
    pipe.pumped.output_pump.stop()
    turns()
    assert (pipe.pumped.ends, pipe.pumped.is_open()) == (["ended"], False)


def test_a_pump_that_waits_for_output_can_be_stopped(pipe: Pipe) -> None:
    pipe.pumped.output_pump.start()
    turns()
    pipe.pumped.output_pump.stop()
    reader, writer = os.pipe()  # perhaps the same number, which nobody may watch any more
    os.write(writer, b"not ours")
    turns()
    os.close(reader)
    os.close(writer)
    assert pipe.pumped.chunks == []


def test_many_small_reads_leave_others_their_turns() -> None:
    """A child that never pauses gives every read a little, and no read nothing."""
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with writer:
        for _ in range(100):
            writer.send(b"x")
        one = Pumped(reader.detach())
        one.output_pump.start()
        seen: list[int] = []

        def look() -> None:
            while not one.chunks:
                gevent.sleep(0)
            seen.append(len(one.chunks))

        gevent.spawn(look)
        turns()
        assert len(one.chunks) == 100
        assert 0 < seen[0] < 50
    turns()
    assert one.ends == ["ended"]


class Terminal:
    """A terminal in raw mode with a pump at its master."""

    def __init__(self, process_over: bool = False) -> None:
        master, self.slave = os.openpty()
        tty.setraw(self.slave)
        self.name = os.ttyname(self.slave)
        self.pumped = Pumped(master, "pty", process_over)

    def close(self) -> None:
        """Close the terminal's last user."""
        if self.slave >= 0:
            os.close(self.slave)
            self.slave = -1

    def reopen(self) -> None:
        self.slave = os.open(self.name, os.O_RDWR | os.O_NOCTTY)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()
    made.pumped.output_pump.stop()
    turns()


def test_what_a_terminal_has_ready_is_joined(terminal: Terminal) -> None:
    written = 0
    os.set_blocking(terminal.slave, False)
    while written < 12_000:
        try:
            written += os.write(terminal.slave, b"x" * 1000)
        except BlockingIOError:
            break
    assert written > 4096, "a terminal holds more than one read gives"
    terminal.pumped.output_pump.start()
    wait_until(lambda: len(terminal.pumped.output) == written, pause=gevent.sleep)
    assert max(map(len, terminal.pumped.chunks)) > 4096


def test_a_keystrokes_echo_is_not_delayed(terminal: Terminal) -> None:
    terminal.pumped.output_pump.start()
    turns()
    os.write(terminal.slave, b"a")
    wait_until(lambda: terminal.pumped.chunks == [b"a"], pause=gevent.sleep)


def test_a_terminal_without_users_ends_with_its_process(terminal: Terminal) -> None:
    one = terminal.pumped
    one.output_pump.start()
    os.write(terminal.slave, b"bye")
    one.process_over = True
    terminal.close()
    wait_until(lambda: one.output_pump.ended, pause=gevent.sleep)
    assert (one.chunks, one.ends, one.is_open()) == ([b"bye"], ["ended"], False)


def test_a_terminal_is_kept_for_a_process_that_opens_it_again(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump_module, "_REOPENED_S", 0.001)
    one = terminal.pumped
    one.output_pump.start()
    terminal.close()
    turns(5)
    assert not one.output_pump.ended
    terminal.reopen()
    os.write(terminal.slave, b"back")
    wait_until(lambda: one.output == b"back", pause=gevent.sleep)
    one.process_over = True
    terminal.close()
    wait_until(lambda: one.output_pump.ended, pause=gevent.sleep)


def test_a_pump_that_waits_for_a_reopened_terminal_can_be_stopped(terminal: Terminal) -> None:
    terminal.pumped.output_pump.start()
    terminal.close()
    turns()
    terminal.pumped.output_pump.stop()
    assert not terminal.pumped.is_open()
