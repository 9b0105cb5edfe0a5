"""The rules of forwarded connections, without a server: order, windows, what is sent again, hostile peers."""

from __future__ import annotations

import pytest

from execserver.client.errors import ProtocolViolation, TransportClosed
from execserver.client.operations import ports as asking
from execserver.client.rules.port_log import PortLog
from execserver.client.rules.port_table import PortTable
from execserver.protocol.ports import (
    PortAcceptedNotification,
    PortAddress,
    PortDataNotification,
    PortOpenResponse,
)

KIB = 1024
MIB = 1024 * KIB
PIECE = 64 * KIB


def note(offset: int, chunk: bytes, *, eof: bool = False) -> PortDataNotification:
    return PortDataNotification(port_id="p", offset=offset, chunk=chunk, eof=eof)


def test_bytes_come_once_and_in_order_until_the_end() -> None:
    log = PortLog("p")
    assert log.take() is None
    for offset, chunk in ((0, b"ab"), (0, b"ab"), (3, b"d"), (2, b"c")):
        assert log.add(note(offset, chunk))
    log.add(note(3, b"", eof=True))
    assert [log.take(), log.take(), log.take()] == [b"abc", b"", b""]
    assert log.arrived == 3


def test_little_pieces_that_nobody_takes_are_held_as_few() -> None:
    log = PortLog("p")
    for offset in range(0, 9000, 2):
        assert log.add(note(offset, b"ab"))
    found = list(iter(log.take, None))
    assert (b"".join(found), len(found)) == (b"ab" * 4500, 3)


def test_what_was_taken_is_acknowledged_by_the_half_window() -> None:
    log = PortLog("p")
    told = []
    for number in range(5):
        log.add(note(number * PIECE, bytes(PIECE)))
        log.take()
        told.append(log.due())
    assert told == [None, 2 * PIECE, None, 4 * PIECE, None]


def test_what_is_used_up_where_it_arrives_counts_as_taken_and_the_rest_stays() -> None:
    log, used = PortLog("p"), []

    def use(data: bytes) -> int:
        used.append(data)
        return min(len(data), 2)

    log.add(note(0, b"ab"))
    assert log.pass_by(use)
    log.add(note(2, b"cde"))
    assert not log.pass_by(use)
    assert (used, log.take(), log.take()) == ([b"ab", b"cde"], b"e", None)
    log.add(note(5, bytes(2 * PIECE)))
    assert log.pass_by(len)
    assert log.due() == 5 + 2 * PIECE
    log.add(note(5 + 2 * PIECE, b"", eof=True))
    assert not log.pass_by(use)
    assert log.take() == b""


def test_large_data_goes_in_pieces_and_the_end_with_the_last_one() -> None:
    log = PortLog("p")
    sent = list(log.pieces(bytes(2 * PIECE + 1), eof=True))
    assert [(each.offset, len(each.chunk), each.eof) for each in sent] == [
        *((0, PIECE, False), (PIECE, PIECE, False)),
        (2 * PIECE, 1, True),
    ]
    assert list(PortLog("p").pieces(b"")) == []
    assert [(each.offset, each.eof) for each in PortLog("p").pieces(b"", eof=True)] == [(0, True)]


def test_a_piece_whose_sender_gave_up_is_sent_again_before_others() -> None:
    log = PortLog("p")
    sending = log.pieces(bytes(3 * PIECE) + b"never")
    given_up = [next(sending), next(sending), next(sending)]  # and no further: its sender was interrupted
    log.settle()  # the answer to the first of them
    assert list(log.given_up()) == given_up[1:]
    log.settle()
    log.settle()
    assert list(log.given_up()) == []
    assert [(each.offset, bytes(each.chunk)) for each in log.pieces(b"next")] == [(3 * PIECE, b"next")]


def test_a_piece_of_which_nothing_was_sent_leaves_no_hole() -> None:
    log = PortLog("p")
    assert log.piece(b"ab").offset == 0
    log.piece(b"cde")
    log.take_back()
    assert (log.piece(b"f", eof=True).offset, log.settle(), log.settle()) == (2, 2, 1)


def test_the_server_says_how_much_may_be_on_its_way() -> None:
    log = PortLog("p")
    log.begin(PortAddress(host="::1", port=1), 1024 * KIB)
    assert [len(each.chunk) for each in log.pieces(bytes(500 * KIB))] == [224 * KIB, 224 * KIB, 52 * KIB]
    for number in range(8):
        log.add(note(number * PIECE, bytes(PIECE)))
        log.take()
        assert log.due() == (512 * KIB if number == 7 else None)
    small = PortLog("p")
    small.begin(PortAddress(host="::1", port=1), 0)
    assert [len(each.chunk) for each in small.pieces(b"ab")] == [1, 1]


def test_after_a_failure_what_came_is_read_and_nothing_is_sent() -> None:
    log = PortLog("p")
    log.add(note(0, b"a"))
    log.fail(TransportClosed("reset"))
    log.fail(TransportClosed("a later reason"))
    log.add(note(1, b"b"))
    assert log.take() == b"a"
    with pytest.raises(TransportClosed, match="reset"):
        log.take()
    with pytest.raises(TransportClosed, match="reset"):
        list(log.pieces(b"x"))


class Stream:
    """What a table made."""

    def __init__(self, port_id: str) -> None:
        self.port_id = port_id
        self.log = PortLog(port_id)
        self.fail = self.log.fail

    def deliver(self, one: PortDataNotification) -> None:
        self.log.add(one)


class Listener:
    """A listener whose connections nobody takes."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.ended = False

    def offer(self, stream: Stream) -> None:
        self.streams.append(stream)

    def waiting(self) -> int:
        return len(self.streams)

    def end(self) -> None:
        self.ended = True


class Table(PortTable[Stream]):
    """A table with one listener, `l`."""

    def __init__(self) -> None:
        super().__init__()
        self.listener = Listener()
        self._listeners["l"] = self.listener
        self.dropped: list[str] = []

    def made(self, port_id: str, peer: PortAddress, window_bytes: int) -> Stream:
        return Stream(port_id)

    def drop(self, port_id: str) -> None:
        self.dropped.append(port_id)

    def connect(self, port_id: str, listen_id: str = "l") -> None:
        peer = PortAddress(host="127.0.0.1", port=1)
        self.on_accepted(
            PortAcceptedNotification(listen_id=listen_id, port_id=port_id, peer=peer, window_bytes=1)
        )


def test_an_id_that_is_taken_replaces_no_stream() -> None:
    table = Table()
    table.connect("p")
    table.connect("p")
    assert table.dropped == []
    (stream,) = table.listener.streams
    table.on_data(note(0, b"a"))
    assert stream.log.take() == b"a"


def test_connections_without_listener_or_room_are_dropped() -> None:
    table = Table()
    for number in range(258):
        table.connect(f"{number}")
    table.connect("x", listen_id="unknown")
    assert len(table.listener.streams) == 256
    assert table.dropped == ["256", "257", "x"]


def test_the_end_of_the_session_fails_all() -> None:
    table = Table()
    table.connect("p")
    table.on_ended(TransportClosed("over"))
    with pytest.raises(TransportClosed, match="over"):
        table.listener.streams[0].log.take()
    assert table.listener.ended


@pytest.mark.parametrize(("received", "rest"), [(0, b"first"), (2, b"rst"), (5, b"")])
def test_first_bytes_that_were_not_taken_are_left_to_be_sent(received: int, rest: bytes) -> None:
    log = PortLog("p")
    opening = asking.connect(asking.place("p", "h", 1, None), log, b"first")
    assert next(opening).params.chunk == b"first"  # type: ignore[attr-defined]
    with pytest.raises(StopIteration) as end:
        opening.send(answer(received))
    assert end.value.value == rest
    assert [params.offset for params in log.pieces(b"more")] == [received]


def test_a_server_cannot_take_more_than_there_was() -> None:
    opening = asking.connect(asking.place("p", "h", 1, None), PortLog("p"), b"first")
    next(opening)
    with pytest.raises(ProtocolViolation, match="more of a connection's first bytes"):
        opening.send(answer(6))


def answer(received: int) -> PortOpenResponse:
    address = PortAddress(host="h", port=1)
    return PortOpenResponse(port_id="p", address=address, window_bytes=MIB, received=received)
