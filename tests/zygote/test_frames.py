"""Frames of the escalate protocol over a pair of sockets, both ends."""

from __future__ import annotations

import _socket
import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.zygote.supervision.wrapper import frames
from execserver.zygote.supervision.wrapper.frames import (
    MAX_DESCRIPTORS,
    MAX_FRAME_BYTES,
    FrameError,
    WrapperFrameReader,
    receive_rights,
    send_frame,
    send_rights,
)

Pair = tuple[_socket.socket, _socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends of a stream."""
    ends = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    yield ends
    for end in ends:
        end.close()


def read(sock: _socket.socket, reader: WrapperFrameReader) -> bytes:
    """Read until a frame is there; everything was sent."""
    while True:
        text = reader.read(sock, socket.MSG_DONTWAIT)
        if text is not None:
            return text


def test_a_frame_is_its_length_and_its_text(pair: Pair) -> None:
    send_frame(pair[0], b'{"a":1}')
    assert pair[1].recv(100) == b'\x07\0\0\0{"a":1}'


def test_frames_follow_each_other(pair: Pair) -> None:
    reader = WrapperFrameReader()
    for text in (b"one", b"", b"three"):
        send_frame(pair[0], text)
    assert [read(pair[1], reader) for _ in range(3)] == [b"one", b"", b"three"]
    with pytest.raises(BlockingIOError):
        reader.read(pair[1], socket.MSG_DONTWAIT)


@given(st.lists(st.binary(max_size=40), max_size=4), st.lists(st.integers(1, 9), max_size=60))
def test_pieces_make_no_difference(texts: list[bytes], cuts: list[int]) -> None:
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    data = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    reader = WrapperFrameReader()
    got: list[bytes] = []
    while data or len(got) < len(texts):
        size = cuts.pop() if cuts else len(data)
        piece, data = data[:size], data[size:]
        ours.send(piece)
        try:
            while len(got) < len(texts):
                text = reader.read(theirs, socket.MSG_DONTWAIT)
                got += [] if text is None else [text]
        except BlockingIOError:
            pass
    ours.close()
    theirs.close()
    assert got == texts


def test_descriptors_ride_with_the_first_byte_and_are_not_inherited(pair: Pair) -> None:
    reader = WrapperFrameReader()
    send_frame(pair[0], b"x" * 1000, [2] * MAX_DESCRIPTORS)
    assert len(read(pair[1], reader)) == 1000
    taken = reader.take_descriptors()
    assert len(taken) == MAX_DESCRIPTORS
    assert not any(os.get_inheritable(descriptor) for descriptor in taken)
    assert all(os.path.samestat(os.fstat(descriptor), os.fstat(2)) for descriptor in taken)
    for descriptor in taken:
        os.close(descriptor)
    assert reader.descriptors == []


def test_too_many_descriptors_are_not_sent_and_not_taken(pair: Pair) -> None:
    with pytest.raises(FrameError, match="too many fds: 17"):
        send_frame(pair[0], b"x", [2] * 17)
    reader = WrapperFrameReader()
    send_rights(pair[0], b"\1\0\0\0x", [2] * 30)
    with pytest.raises(FrameError, match=r"too many fds: 1[78]"):  # the system rounds up
        reader.read(pair[1])
    reader.close()


def test_what_is_not_taken_is_closed(pair: Pair) -> None:
    before = os.listdir("/proc/self/fd")
    reader = WrapperFrameReader()
    send_frame(pair[0], b"x", [2, 2])
    read(pair[1], reader)
    reader.close()
    assert os.listdir("/proc/self/fd") == before


def test_frames_above_the_limit_are_not_sent_and_not_read(pair: Pair) -> None:
    with pytest.raises(FrameError, match="above the limit"):
        send_frame(pair[0], bytes(MAX_FRAME_BYTES + 1))
    pair[0].send((11).to_bytes(4, "little"))
    with pytest.raises(FrameError, match="frame of 11 bytes is above the limit of 10"):
        read(pair[1], WrapperFrameReader(10))


@pytest.mark.parametrize(("data", "part"), [(b"", "header"), (b"\5\0", "header"), (b"\5\0\0\0ab", "payload")])
def test_an_end_in_between_is_told(data: bytes, part: str, pair: Pair) -> None:
    reader = WrapperFrameReader()
    pair[0].send(data)
    pair[0].close()
    with pytest.raises(FrameError, match=f"socket closed while receiving frame {part}"):
        read(pair[1], reader)


def test_a_frame_that_has_come_in_part_is_counted(pair: Pair) -> None:
    reader = WrapperFrameReader()
    pair[0].send((100).to_bytes(4, "little") + b"x" * 60)
    with pytest.raises(BlockingIOError):
        read(pair[1], reader)
    assert reader.held_bytes == 60


def test_a_frame_is_sent_whole_however_little_the_kernel_takes(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def send_three(sock: _socket.socket, data: bytes, descriptors: list[int], flags: int = 0) -> int:
        calls.append(len(list(descriptors)))
        return send_rights(sock, data[:3], descriptors, flags)

    monkeypatch.setattr(frames, "send_rights", send_three)
    send_frame(pair[0], b"seven b", [2])
    reader = WrapperFrameReader()
    assert read(pair[1], reader) == b"seven b"
    assert calls == [1, 0, 0, 0]
    assert len(reader.descriptors) == 1
    reader.close()


def test_rights_need_no_frame(pair: Pair) -> None:
    send_rights(pair[0], b"\0", [2])
    data, descriptors = receive_rights(pair[1], 10)
    assert data == b"\0"
    os.close(descriptors[0])
    assert len(descriptors) == 1
