"""Messages cut out of what a server sends, as the library of `websockets` would cut them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, OPEN, Protocol

from execserver.wire.client_frames import BINARY_MESSAGE, BUFFER_BYTES, TEXT_MESSAGE, ClientFrames

MAX_BYTES = 256 * 1024


class Peer:
    """The library behind the frames, as the owner of a connection has it."""

    def __init__(self, max_bytes: int = MAX_BYTES, whole: int = BINARY_MESSAGE) -> None:
        self.found: list[object] = []  # messages as bytes, all else as the library's frames
        self.quick = 0
        self.library = Protocol(CLIENT, state=OPEN, max_size=(max_bytes, max_bytes))
        self.frames = ClientFrames(whole, max_bytes, self._message, self._feed)

    def _message(self, message: bytes) -> None:
        self.quick += 1
        self.found.append(message)

    def _feed(self, data: bytes) -> bool:
        self.library.receive_data(data)
        for event in self.library.events_received():
            assert isinstance(event, Frame)
            is_message = event.opcode is Opcode.BINARY and event.fin
            self.found.append(bytes(event.data) if is_message else (event.opcode, event.fin, event.data))
        return self.library.state is OPEN and self.library.parser_exc is None

    def read(self, data: bytes, sizes: list[int]) -> None:
        """Read the bytes in pieces of these sizes, again and again."""
        at = number = 0
        while at < len(data):
            part = data[at : at + min(sizes[number % len(sizes)], len(self.frames.space))]
            self.frames.take(part)
            at += len(part)
            number += 1


def frame(lead: int, payload: bytes, *, masked: bool = False) -> bytes:
    size = len(payload)
    flag = 0x80 if masked else 0
    if size < 126:
        head = bytes((lead, flag | size))
    elif size < 65536:
        head = bytes((lead, flag | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((lead, flag | 127)) + size.to_bytes(8, "big")
    return head + (bytes(4) if masked else b"") + payload


LEADS = st.sampled_from([0x82] * 6 + [0x02, 0x80, 0x00, 0x81, 0x01, 0x89, 0x8A, 0x88, 0xC2, 0x83])
PAYLOADS = st.one_of(
    st.binary(max_size=130), st.sampled_from([125, 126, 65535, 65536, MAX_BYTES, MAX_BYTES + 1]).map(bytes)
)
FRAMES = st.builds(frame, LEADS, PAYLOADS, masked=st.sampled_from([False] * 9 + [True]))
SIZES = st.lists(st.sampled_from([1, 2, 3, 7, 1000, 65536, BUFFER_BYTES]), min_size=1, max_size=3).filter(
    lambda sizes: max(sizes) > 500
)


@given(st.lists(FRAMES, max_size=8), SIZES)
def test_it_finds_what_the_library_finds(sent: list[bytes], sizes: list[int]) -> None:
    data = b"".join(sent)
    peer, alone = Peer(), Peer()
    peer.read(data, sizes)
    alone._feed(data)
    assert peer.found == alone.found
    assert (peer.library.parser_exc is None) == (alone.library.parser_exc is None)
    assert peer.library.state == alone.library.state


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, MAX_BYTES])
def test_whole_messages_do_not_trouble_the_library(size: int) -> None:
    peer = Peer()
    peer.read(frame(0x82, b"m" * size) * 3, [50_000])
    assert peer.found == [b"m" * size] * 3
    assert peer.quick == 3


def test_a_frame_above_the_limit_is_refused_at_its_header() -> None:
    peer = Peer()
    peer.read(frame(0x82, bytes(MAX_BYTES + 1))[:10], [BUFFER_BYTES])
    assert peer.library.parser_exc is not None
    peer.read(frame(0x82, b"never read"), [BUFFER_BYTES])
    assert peer.found == []


def test_nothing_is_taken_behind_a_frame_that_breaks_the_protocol() -> None:
    peer = Peer()
    too_long_for_a_ping = frame(0x89, bytes(65535))
    peer.read(too_long_for_a_ping + frame(0x82, b"never read") + frame(0x8A, b""), [3, 65536])
    assert peer.library.parser_exc is not None
    assert peer.found == []


def test_a_frame_that_does_not_fit_goes_to_the_library_in_pieces() -> None:
    peer = Peer(max_bytes=8 * BUFFER_BYTES)
    large = b"L" * (3 * BUFFER_BYTES)
    peer.read(frame(0x82, large) + frame(0x82, b"small"), [BUFFER_BYTES])
    assert peer.found == [large, b"small"]
    assert peer.quick == 1


def test_a_message_inside_of_fragments_is_the_librarys_to_refuse() -> None:
    peer = Peer()
    peer.read(frame(0x02, b"begun") + frame(0x89, b"ping") + frame(0x82, b"whole"), [BUFFER_BYTES])
    assert peer.quick == 0
    assert peer.library.parser_exc is not None


def test_where_text_is_spoken_text_is_what_is_taken() -> None:
    peer = Peer(whole=TEXT_MESSAGE)
    peer.read(frame(0x81, b"text") + frame(0x82, b"binary"), [BUFFER_BYTES])
    assert peer.found == [b"text", b"binary"]
    assert peer.quick == 1
