"""One file worker as the server sees it, played by a socket and by a real process."""

from __future__ import annotations

import _socket
import errno
import os
import struct
from collections.abc import Callable, Iterator

import gevent
import pytest

from execserver.protocol.errors import InternalError
from execserver.sandbox.files import worker_records as records
from execserver.services.files.worker import NotBegun, Worker, is_usable
from execserver.zygote.channel import receive_record, send_record
from tests.support.greenlets import turns


class PlayedProcess:
    """A worker process that a test plays."""

    def __init__(self) -> None:
        self.pid = 4_000_001
        self.exited = False
        self.kills = 0

    def kill(self) -> None:
        self.kills += 1


class Played:
    """A worker whose answers the test gives."""

    def __init__(self, timeout_s: float = 5.0) -> None:
        ours, self.theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.process = PlayedProcess()
        self.worker = Worker(self.process, ours, timeout_s)

    def call(self, operation: int = records.READ) -> gevent.Greenlet[..., object]:
        """Make a call in a greenlet."""

        def run() -> object:
            try:
                return self.worker.call(records.Request(7, operation, b"/f"))
            except (InternalError, NotBegun, OSError) as error:
                return error

        greenlet = gevent.spawn(run)
        turns()
        return greenlet

    def taken(self) -> records.Request:
        """Take the request."""
        received = receive_record(self.theirs)
        assert received is not None
        return records.decode_request(received[0])

    def say(self, data: bytes, *descriptors: int) -> None:
        """Send anything."""
        send_record(self.theirs, data, descriptors)

    def close(self) -> None:
        self.worker.end()
        self.theirs.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Played]]:
    """Make played workers, ended after the test."""
    made: list[Played] = []

    def make(timeout_s: float = 5.0) -> Played:
        made.append(Played(timeout_s))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def played(make: Callable[..., Played]) -> Played:
    return make()


@pytest.fixture
def file(tmp_path: os.PathLike[str]) -> Iterator[Callable[..., int]]:
    """Open things; all are closed at the end."""
    opened: list[int] = []

    def open_(flags: int, path: str = "f") -> int:
        opened.append(os.open(os.path.join(tmp_path, path), flags | os.O_CREAT, 0o600))
        return opened[-1]

    yield open_
    for fd in opened:
        os.close(fd)


def done(opened: bool = True, number: int = 7) -> bytes:
    return records.encode_reply(records.Done(number, opened))


def result(greenlet: gevent.Greenlet[..., object]) -> object:
    return greenlet.get(timeout=20)


def test_an_answer_with_a_descriptor_arrives(played: Played, file: Callable[..., int]) -> None:
    call = played.call()
    assert played.taken().path == b"/f"
    played.say(done(), file(os.O_RDONLY))
    answer = result(call)
    assert isinstance(answer, tuple)
    reply, fd = answer
    assert isinstance(reply, records.Done)
    assert os.get_inheritable(fd) is False
    os.close(fd)
    assert played.worker.alive


def test_an_eager_call_needs_no_turn_of_the_loop(played: Played, file: Callable[..., int]) -> None:
    played.say(done(), file(os.O_RDONLY))
    turns_taken: list[int] = []
    gevent.spawn(turns_taken.append, 1)
    _, fd = played.worker.call(records.Request(7, records.READ, b"/f"), eager=True)
    assert fd is not None
    os.close(fd)
    assert turns_taken == []
    turns()


def test_an_eager_call_that_is_not_answered_at_once_waits_like_any(played: Played) -> None:
    gevent.spawn_later(0.05, lambda: played.say(done(opened=False)))
    reply, fd = played.worker.call(records.Request(7, records.REMOVE, b"/f"), eager=True)
    assert (type(reply), fd) == (records.Done, None)


def test_with_every_sign_of_progress_the_time_begins_anew(
    make: Callable[..., Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []

    class Counted(gevent.Timeout):
        def __init__(self, seconds: float, exception: type[BaseException]) -> None:
            times.append(seconds)
            super().__init__(seconds, exception)

    played = make(20.5)
    monkeypatch.setattr(gevent, "Timeout", Counted)
    call = played.call(records.REMOVE)
    for number in range(3):
        assert times == [20.5] * (number + 1)
        played.say(records.encode_reply(records.Progress(7)))
        turns()
    played.say(done(opened=False))
    answer = result(call)
    assert isinstance(answer, tuple)
    assert isinstance(answer[0], records.Done)
    assert times == [20.5] * 4


def test_a_silent_worker_is_killed_and_the_call_answered(make: Callable[..., Played]) -> None:
    played = make(0.1)
    answer = result(played.call())
    assert isinstance(answer, InternalError)
    assert answer.message == "fs sandbox worker gave no answer for 0.1 s"
    assert (played.worker.alive, played.process.kills) == (False, 1)


def test_a_worker_that_ends_in_a_call_is_an_error(played: Played) -> None:
    call = played.call()
    played.taken()
    played.theirs.close()
    answer = result(call)
    assert isinstance(answer, InternalError)
    assert "ended in the middle of the call" in answer.message
    assert not played.worker.alive


def test_a_worker_that_ended_before_it_took_the_request_has_not_begun(make: Callable[..., Played]) -> None:
    played = make()
    call = played.call()
    played.theirs.close()
    assert isinstance(result(call), NotBegun)
    gone = make()
    gone.theirs.close()
    assert gone.worker.ended()
    assert isinstance(result(gone.call()), NotBegun)
    assert not gone.worker.alive


def test_an_idle_worker_is_known_to_live(played: Played) -> None:
    assert not played.worker.ended()
    played.process.exited = True
    assert played.worker.ended()


WRONG = {
    "noise": b"\xfenoise",
    "nothing": b"\x00",
    "another request's": done(number=8),
    "nothing opened": done(opened=False),
    "a large record that is none": b"\xff" + b"\0" * 23,
    "a large record cut short": b"\xff\0\0",
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG)
def test_answers_that_break_the_rules_cost_the_worker(played: Played, data: bytes) -> None:
    call = played.call()
    played.say(data)
    assert isinstance(result(call), InternalError)
    assert not played.worker.alive


@pytest.mark.parametrize("length", [1, 2**63])
def test_a_large_record_that_cannot_be_read_is_an_error_and_the_worker_lives(
    played: Played, length: int
) -> None:
    call = played.call(records.READ_DIRECTORY)
    played.say(struct.pack("<B7xQQ", 0xFF, 7, length))
    answer = result(call)
    assert isinstance(answer, OSError)
    assert answer.errno == errno.EMFILE  # as if this process had had no number left for it
    assert played.worker.alive


@pytest.mark.parametrize(
    ("operation", "flags", "path"),
    [
        (records.READ, os.O_WRONLY, "f"),
        (records.READ, os.O_RDWR, "f"),
        (records.READ, os.O_PATH, "f"),
        (records.READ, os.O_RDONLY, "/dev/zero"),
        (records.READ, os.O_RDONLY, "/"),
        (records.WRITE, os.O_RDWR, "f"),
        (records.WRITE, os.O_WRONLY, "/dev/urandom"),
        (records.WRITE, os.O_PATH, "f"),
        (records.REPLACE, os.O_WRONLY, "/dev/null"),
    ],
)
def test_a_descriptor_of_another_kind_is_not_taken(
    played: Played, tmp_path: os.PathLike[str], operation: int, flags: int, path: str
) -> None:
    where = os.path.join(tmp_path, path)
    if path == "f":
        os.close(os.open(where, os.O_CREAT | os.O_WRONLY, 0o600))
    fd = os.open(where, flags | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        assert not is_usable(fd, operation)
        call = played.call(operation)
        played.say(done(), fd)
        answer = result(call)
    finally:
        os.close(fd)
    assert isinstance(answer, InternalError)
    assert "what was opened is not what was asked for" in answer.message
    assert not played.worker.alive


def test_more_descriptors_than_asked_for_are_closed(played: Played, file: Callable[..., int]) -> None:
    call = played.call()
    played.say(done(), file(os.O_RDONLY), file(os.O_RDONLY))
    assert isinstance(result(call), InternalError)
    other = played.worker
    assert not other.alive


def test_a_descriptor_nobody_asked_for_is_closed(played: Played, file: Callable[..., int]) -> None:
    call = played.call(records.REMOVE)
    played.say(done(), file(os.O_RDONLY))
    assert isinstance(result(call), InternalError)


def test_a_descriptor_that_found_no_number_is_an_error_and_the_worker_lives(played: Played) -> None:
    call = played.call()
    played.say(done())
    answer = result(call)
    assert isinstance(answer, OSError)
    assert answer.errno == errno.EMFILE
    assert played.worker.alive


def test_a_killed_caller_costs_the_worker(played: Played) -> None:
    call = played.call()
    call.kill()
    assert (played.worker.alive, played.process.kills) == (False, 1)


def test_null_devices_may_be_written() -> None:
    for path in ("/dev/null", "/dev/zero", "/dev/full"):
        fd = os.open(path, os.O_WRONLY)
        try:
            assert is_usable(fd, records.WRITE)
        finally:
            os.close(fd)
