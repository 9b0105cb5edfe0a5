from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from execserver.settings import Settings
from execserver.transports.stdio import LineFraming, StdioTransport
from tests.support.greenlets import turns
from tests.support.waiting import wait_until


class FakeReceiver:
    """A fake connection: keeps what a carrier delivers."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.ended_calls = 0

    def receive(self, messages: list[bytes]) -> None:
        assert not self.ended_calls
        self.messages += messages

    def ended(self) -> None:
        self.ended_calls += 1


class Piped:
    """A carrier over two pipes, its fake receiver, and the other ends."""

    def __init__(self, **settings: float) -> None:
        self.stdin_fd, self._typed_fd = os.pipe()
        self._shown_fd, self.stdout_fd = os.pipe()
        os.set_blocking(self._shown_fd, False)
        self._open = {self.stdin_fd, self._typed_fd, self._shown_fd, self.stdout_fd}
        self.transport = StdioTransport(self.stdin_fd, self.stdout_fd, Settings(**settings))
        self.receiver = FakeReceiver()
        self.transport.start(self.receiver)

    @property
    def messages(self) -> list[bytes]:
        return self.receiver.messages

    def type(self, data: bytes) -> None:
        """Send input and let it be read."""
        assert os.write(self._typed_fd, data) == len(data)
        turns()

    def end_input(self) -> None:
        """Close the other end of the input."""
        self._close(self._typed_fd)
        turns()

    def stop_reading(self) -> None:
        """Close the other end of the output."""
        self._close(self._shown_fd)

    def shown(self) -> bytes:
        """Return the output so far."""
        turns()
        try:
            return os.read(self._shown_fd, 1 << 20)
        except BlockingIOError:
            return b""

    @property
    def done(self) -> bool:
        return self.transport.done.is_set()

    def close(self) -> None:
        """Close all four ends."""
        self.transport.close(1001, "the test is over")
        self.end_input()
        wait_until(lambda: self.done, pause=gevent.sleep)
        self.transport.outbox.close()
        for descriptor in list(self._open):
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._open.discard(descriptor)
            os.close(descriptor)


@pytest.fixture
def piped() -> Iterator[Piped]:
    made = Piped()
    yield made
    made.close()


def test_lines_are_messages_however_they_are_cut(piped: Piped) -> None:
    piped.type(b'{"a":1}\n{"b"')
    assert piped.messages == [b'{"a":1}']
    piped.type(b":2}\n\n  \n{}\r\n")
    assert [message.strip() for message in piped.messages] == [b'{"a":1}', b'{"b":2}', b"{}"]


def test_answers_are_lines(piped: Piped) -> None:
    piped.transport.outbox.send(b"{}")
    piped.transport.outbox.stream([b"[1", b",2", b"]"])
    assert piped.shown() == b"{}\n[1,2]\n"


def test_the_framing_of_lines() -> None:
    framing = LineFraming()
    assert framing.whole(9) == (b"", b"\n")
    assert framing.piece(9, first=True, final=False) == (b"", b"")
    assert framing.piece(9, first=False, final=True) == (b"", b"\n")


def test_the_end_of_input_is_the_end_of_the_conversation(piped: Piped) -> None:
    piped.type(b"{}\nlast")
    piped.end_input()
    assert piped.messages == [b"{}", b"last"]
    assert (piped.done, piped.receiver.ended_calls) == (True, 1)


def test_answers_are_written_after_the_end_of_input(piped: Piped) -> None:
    piped.end_input()
    piped.transport.outbox.send(b"{}")
    assert piped.transport.outbox.wait_until_empty(5)
    assert piped.shown() == b"{}\n"


def test_output_that_nobody_reads_ends_the_conversation(piped: Piped) -> None:
    piped.stop_reading()
    piped.transport.outbox.send(b"{}")
    turns()
    assert (piped.done, piped.receiver.ended_calls) == (True, 1)
    assert piped.transport.outbox.closed


def test_reading_stops_and_goes_on(piped: Piped) -> None:
    piped.transport.pause()
    piped.type(b"{}\n")
    assert piped.messages == []
    piped.transport.resume()
    turns()
    assert piped.messages == [b"{}"]


def test_after_a_violation_input_is_only_watched_for_its_end(
    piped: Piped, caplog: pytest.LogCaptureFixture
) -> None:
    piped.transport.outbox.send(b"{}")
    piped.transport.close(1008, "no such notification")
    piped.transport.outbox.send(b"too late")
    piped.type(b"{}\n" * 3)
    assert (piped.messages, piped.done) == ([], False)
    assert piped.shown() == b"{}\n"
    piped.end_input()
    assert (piped.messages, piped.done) == ([], True)
    assert caplog.messages == ["the conversation is over: no such notification (1008)"]
    caplog.clear()


def test_a_violation_while_reading_is_paused_does_not_hide_the_end(piped: Piped) -> None:
    piped.transport.pause()
    piped.transport.close(1008, "x")
    piped.end_input()
    assert piped.done


def test_a_line_that_is_too_long_ends_the_conversation(caplog: pytest.LogCaptureFixture) -> None:
    piped = Piped(max_message_bytes=10)
    piped.type(b"{}\n" + b"x" * 10)
    assert not piped.done
    piped.type(b"x")
    assert (piped.messages, piped.done, piped.receiver.ended_calls) == ([b"{}"], True, 1)
    assert caplog.messages == ["input is not understood any more: a line is longer than 10 bytes"]
    piped.close()


def test_descriptors_are_given_back_as_they_were() -> None:
    piped = Piped()
    assert [os.get_blocking(fd) for fd in (piped.stdin_fd, piped.stdout_fd)] == [False, False]
    piped.transport.restore()
    assert [os.get_blocking(fd) for fd in (piped.stdin_fd, piped.stdout_fd)] == [True, True]
    piped.close()
    piped.transport.restore()  # also when they are closed by now


def test_one_description_for_both_ways_is_given_back_too() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport = StdioTransport(ours.fileno(), ours.fileno(), Settings())
        assert not os.get_blocking(ours.fileno())
        transport.restore()
        assert os.get_blocking(ours.fileno())


@pytest.mark.parametrize(("content", "messages"), [(b"{}\nlast", [b"{}", b"last"]), (b"", [])])
def test_input_may_be_a_file(tmp_path: Path, content: bytes, messages: list[bytes]) -> None:
    (tmp_path / "input").write_bytes(content)
    receiver = FakeReceiver()
    with open(tmp_path / "input", "rb") as source, open(tmp_path / "output", "wb") as sink:
        transport = StdioTransport(source.fileno(), sink.fileno(), Settings())
        transport.start(receiver)
        assert transport.done.wait(20)
        transport.outbox.send(b"answer")
        assert transport.outbox.wait_until_empty(5)
        transport.restore()
    assert receiver.messages == messages
    assert (tmp_path / "output").read_bytes() == b"answer\n"


def test_input_may_be_the_null_device() -> None:
    receiver = FakeReceiver()
    with open(os.devnull, "r+b", buffering=0) as null:
        transport = StdioTransport(null.fileno(), null.fileno(), Settings())
        transport.start(receiver)
        assert transport.done.wait(20)
    assert receiver.messages == []
