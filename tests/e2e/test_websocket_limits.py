"""The largest frames, messages and answers, and what happens one byte beyond."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Connect
from tests.support.peer import encode
from tests.support.server_process import ServerProcess
from tests.support.ws_peer import CONTINUATION, TEXT, Ending, Frame, WsPeer

FRAME = 16 * 1024 * 1024
MESSAGE = 64 * 1024 * 1024
OUTBOUND_FRAME = 4 * 1024 * 1024
FRAGMENTS = 4096
TOO_BIG = 1009
close_code = pytest.mark.ours_only("the reference drops the connection without a Close frame")


class Measured(WsPeer):
    """A peer that remembers the size of every data frame it received."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.sizes: list[int] = []

    def _take_data(self, frame: Frame) -> bytes | None:
        self.sizes.append(len(frame.payload))
        return super()._take_data(frame)


@pytest.fixture
def measured(server: ServerProcess) -> Iterator[Measured]:
    """A connection with a session that measures frames."""
    with Measured.connect(server.url) as peer:
        assert isinstance(peer, Measured)
        peer.open_session()
        peer.sizes.clear()
        yield peer


def padded(size: int) -> bytes:
    """Return a request for an unknown method, as long as wanted."""
    head, tail = b'{"id":7,"method":"no/such","params":"', b'"}'
    return head + b"x" * (size - len(head) - len(tail)) + tail


def in_pieces(message: bytes, size: int) -> Iterator[bytes]:
    return (message[start : start + size] for start in range(0, len(message), size))


def send_header(peer: WsPeer, opcode: int, size: int) -> None:
    """Announce a frame without sending its payload: the answer must not wait for that."""
    peer.send_raw(struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, size) + b"mask")


def is_answered(peer: WsPeer) -> bool:
    return bool(peer.take({"id": 7})["error"]["code"] == -32601)


def test_a_frame_of_16_mib_is_taken(connect: Connect) -> None:
    peer = connect()
    peer.send_frame(TEXT, padded(FRAME))
    assert is_answered(peer)


@close_code
def test_a_frame_of_one_byte_more_ends_the_connection(connect: Connect) -> None:
    peer = connect()
    send_header(peer, TEXT, FRAME + 1)
    assert peer.wait_for_end() is Ending.CLOSE_FRAME
    assert peer.close_code == TOO_BIG


def test_a_message_of_64_mib_is_taken_in_fragments(connect: Connect) -> None:
    peer = connect()
    peer.send_fragments(in_pieces(padded(MESSAGE), FRAME))
    assert is_answered(peer)


@close_code
def test_a_message_of_one_byte_more_ends_the_connection(connect: Connect) -> None:
    peer = connect()
    for index in range(4):
        peer.send_frame(CONTINUATION if index else TEXT, bytes(FRAME), final=False)
    send_header(peer, CONTINUATION, 1)
    assert peer.wait_for_end() is Ending.CLOSE_FRAME
    assert peer.close_code == TOO_BIG


def test_a_message_of_4096_fragments_is_taken(connect: Connect) -> None:
    peer = connect()
    message = padded(FRAGMENTS)
    peer.send_fragments(in_pieces(message, 1))
    assert is_answered(peer)


@close_code
def test_one_fragment_more_ends_the_connection(connect: Connect) -> None:
    peer = connect()
    for index in range(FRAGMENTS + 1):
        peer.send_frame(CONTINUATION if index else TEXT, b"", final=False)
    assert peer.wait_for_end() is Ending.CLOSE_FRAME
    assert peer.close_code == TOO_BIG


def test_a_write_of_48_mib_arrives(connect: Connect, tmp_path: Path) -> None:
    peer = connect()
    peer.open_session()
    data = bytes(range(256)) * (45 * 1024 * 4)
    params = {"path": str(tmp_path / "f"), "dataBase64": base64.b64encode(data).decode()}
    peer.send_fragments(in_pieces(encode({"id": 7, "method": "fs/writeFile", "params": params}), FRAME))
    assert peer.take({"id": 7})["result"] == {}
    assert (tmp_path / "f").read_bytes() == data


@close_code
def test_a_large_answer_comes_in_frames_of_at_most_4_mib(measured: Measured, tmp_path: Path) -> None:
    data = bytes(range(256)) * (9 * 1024 * 4)
    (tmp_path / "f").write_bytes(data)
    result = measured.call("fs/readFile", {"path": str(tmp_path / "f")})
    assert base64.b64decode(result["dataBase64"]) == data
    assert len(measured.sizes) >= 3
    assert max(measured.sizes) <= OUTBOUND_FRAME


def test_a_small_answer_is_one_frame(measured: Measured) -> None:
    measured.call("environment/info")
    assert len(measured.sizes) == 1
