"""The line between a server and its keeper."""

from __future__ import annotations

import _socket
import os
import resource
from collections.abc import Iterator

import pytest

from execserver.survival import messages
from execserver.survival.keeping import KEEPER_VARIABLE, Keeping, keeping_of
from execserver.survival.messages import BadMessage, receive, send

Ends = tuple[_socket.socket, _socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = messages.line()
    yield both
    for end in both:
        end.close()


def begun(ends: Ends, cause: bytes = b"") -> Keeping:
    send(ends[0], messages.BEGIN, text=cause)
    return Keeping(ends[1])


def test_descriptors_arrive_with_their_keys_and_are_not_inherited(ends: Ends) -> None:
    reader, writer = os.pipe()
    send(ends[0], messages.HOLD, [7, 9], [reader, writer])
    send(ends[0], messages.BEGIN, text=b"signal 9")
    keeping = Keeping(ends[1])
    assert (sorted(keeping.table), keeping.cause) == ([7, 9], "signal 9")
    assert not any(map(os.get_inheritable, keeping.table.values()))
    os.write(keeping.table[9], b"x")
    assert os.read(reader, 1) == b"x"
    # Keys are given once, also over a kill.
    assert keeping.hold([reader, writer]) == [10, 11]
    assert keeping.hold_zygote(4711, reader) == 12
    for fd in (reader, writer, *keeping.table.values()):
        os.close(fd)
    for expected in ((messages.HOLD, [10, 11]), (messages.ZYGOTE, [4711, 12])):
        message = receive(ends[0])
        assert message is not None
        assert (message.kind, message.numbers) == expected
        for fd in message.fds:
            os.close(fd)


def test_only_what_is_held_is_let_go(ends: Ends) -> None:
    keeping = begun(ends)
    (key,) = keeping.hold([0])
    keeping.drop([key, 99])
    keeping.drop([key])
    keeping.tell(b"READY=1")
    found = [receive(ends[0]) for _ in range(3)]
    assert [None if each is None else each.kind for each in found] == [
        *(messages.HOLD, messages.DROP, messages.TELL)
    ]
    assert found[1] is not None
    assert found[1].numbers == [key]
    assert found[0] is not None
    os.close(found[0].fds[0])


def test_a_keeper_that_is_gone_is_told_once(ends: Ends) -> None:
    keeping = begun(ends)
    ends[0].close()
    keeping.tell(b"READY=1")
    lost: list[int] = []
    keeping.ready(lambda: lost.append(1))
    keeping.tell(b"READY=1")
    keeping.lost()
    assert lost == [1]


def test_a_keeper_that_ends_before_it_has_begun(ends: Ends) -> None:
    ends[0].close()
    with pytest.raises(BrokenPipeError):
        Keeping(ends[1])


def test_descriptors_that_found_no_room_are_missed(ends: Ends) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    send(ends[0], messages.HOLD, list(range(20)), [0] * 20)
    highest = os.dup(0)
    os.close(highest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 5, hard))
    try:
        with pytest.raises(BadMessage):
            receive(ends[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("data", [b"H\x01", b"H" + bytes(8), b"Z" + bytes(16), b"D" + bytes(7), b"x" * 9000])
def test_what_is_no_message_is_refused(ends: Ends, data: bytes) -> None:
    ends[0].send(data)
    try:
        message = receive(ends[1])
    except BadMessage:
        return
    assert message is not None
    assert (message.numbers, message.fds) == ([], [])


def test_the_line_is_named_by_a_variable_that_is_taken_away(ends: Ends) -> None:
    assert keeping_of({}) is None
    send(ends[0], messages.BEGIN)
    environ = {KEEPER_VARIABLE: str(os.dup(ends[1].fileno())), "OTHER": "x"}
    keeping = keeping_of(environ)
    assert keeping is not None
    assert environ == {"OTHER": "x"}
    assert not os.get_inheritable(keeping.fd)
    keeping._sock.close()
    with pytest.raises(ValueError, match="invalid literal"):
        keeping_of({KEEPER_VARIABLE: "three"})
