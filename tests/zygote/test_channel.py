from __future__ import annotations

import _socket
import fcntl
import os
import resource
from collections.abc import Iterator

import pytest

from execserver.zygote.channel import DATAGRAM_BYTES, RecordLost, receive_record, send_record
from execserver.zygote.records import Exited, SpawnRequest, Started, decode, encode

Pair = tuple[_socket.socket, _socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    left.settimeout(20)
    right.settimeout(20)
    yield left, right
    left.close()
    right.close()


def large_record(size: int = 1_500_000) -> SpawnRequest:
    return SpawnRequest(77, [b"prog"], [b"A=" + b"x" * size], b"/")


def test_records_arrive_one_by_one_in_order(pair: Pair) -> None:
    left, right = pair
    for number in range(3):
        send_record(left, encode(Started(number, 100 + number)))
    received = [receive_record(right) for _ in range(3)]
    assert received == [(encode(Started(number, 100 + number)), []) for number in range(3)]


def test_descriptors_arrive_close_on_exec_and_in_order(pair: Pair, tmp_path: os.PathLike[str]) -> None:
    left, right = pair
    first, second = os.pipe2(os.O_CLOEXEC)
    send_record(left, encode(Started(1, 2)), [first, second])
    received = receive_record(right)
    assert received is not None
    _, descriptors = received
    os.write(descriptors[1], b"through")
    assert os.read(first, 10) == b"through"
    assert [fcntl.fcntl(number, fcntl.F_GETFD) for number in descriptors] == [fcntl.FD_CLOEXEC] * 2
    for number in (first, second, *descriptors):
        os.close(number)


@pytest.mark.parametrize("size", [DATAGRAM_BYTES, DATAGRAM_BYTES + 1, 1_500_000])
def test_a_record_of_any_size_arrives_whole(pair: Pair, size: int) -> None:
    left, right = pair
    record = large_record(size)
    first, second = os.pipe2(os.O_CLOEXEC)
    send_record(left, encode(record), [first, second])
    received = receive_record(right)
    assert received is not None
    data, descriptors = received
    assert decode(data) == record
    assert len(descriptors) == 2
    for number in (first, second, *descriptors):
        os.close(number)


def test_the_end_of_the_peer_is_the_end_of_file(pair: Pair) -> None:
    left, right = pair
    send_record(left, encode(Exited(1, 2, 0)))
    left.close()
    assert receive_record(right) == (encode(Exited(1, 2, 0)), [])
    assert receive_record(right) is None


def test_a_peer_that_closed_with_unread_records_is_the_end_of_file(pair: Pair) -> None:
    left, right = pair
    send_record(right, encode(Exited(1, 2, 0)))
    left.close()
    assert receive_record(right) is None


@pytest.mark.parametrize("blocking", [True, False])
def test_what_a_peer_sent_before_it_closed_with_unread_records_arrives(pair: Pair, blocking: bool) -> None:
    left, right = pair
    right.setblocking(blocking)
    told = [encode(Exited(number, 100 + number, 0)) for number in range(3)]
    for each in told:
        send_record(left, each)
    send_record(right, encode(Started(9, 9)))
    left.close()
    assert [receive_record(right) for _ in range(4)] == [*[(each, []) for each in told], None]


def test_a_full_non_blocking_socket_raises_and_sends_nothing(pair: Pair) -> None:
    left, right = pair
    left.setblocking(False)
    sent = 0
    with pytest.raises(BlockingIOError):  # noqa: PT012 - how many fit is the kernel's business
        while True:
            send_record(left, encode(Exited(sent, 2, 0)))
            sent += 1
    right.setblocking(False)
    for number in range(sent):
        assert receive_record(right) == (encode(Exited(number, 2, 0)), [])
    with pytest.raises(BlockingIOError):
        receive_record(right)


def test_a_large_record_without_a_free_descriptor_tells_its_request(pair: Pair) -> None:
    left, right = pair
    send_record(left, encode(large_record()))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        with pytest.raises(RecordLost) as lost:
            receive_record(right)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert lost.value.request_id == 77
