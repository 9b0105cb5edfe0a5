"""Messages cut out of what a server sends, as the library of `websockets` would cut them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, OPEN, Protocol

from execserver.wire import client_frames
from execserver.wire.client_frames import (
    BINARY_MESSAGE,
    BUFFER_BYTES,
    SHORT_BYTES,
    SMALL_BYTES,
    TEXT_MESSAGE,
    ClientFrames,
    message_frames,
    short_frame,
)
from execserver.wire.websocket import FrameLimits, ServerFrames

MAX_BYTES = 256 * 1024


class Peer:
    """The library behind the frames, as the owner of a connection has it."""

    def __init__(
        self, max_bytes: int = MAX_BYTES, whole: int = BINARY_MESSAGE, looks_for_lone: bool = False
    ) -> None:
        self.found: list[object] = []  # messages as bytes, all else as the library's frames
        self.quick = self.lone = 0
        self.looks_for_lone = looks_for_lone
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

    def _read(self, part: bytes) -> None:
        self.frames.space[: len(part)] = part
        lone = self.frames.lone(len(part)) if self.looks_for_lone else None
        if lone is None:
            self.frames.arrived(len(part))
        else:
            self.lone += 1
            self.found.append(lone)

    def read(self, data: bytes, sizes: list[int]) -> None:
        """Read the bytes in pieces of these sizes, again and again."""
        at = number = 0
        while at < len(data):
            part = data[at : at + min(sizes[number % len(sizes)], len(self.frames.space))]
            self._read(part)
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
    alone = Peer()
    alone._feed(data)
    for peer in (Peer(), Peer(looks_for_lone=True)):
        peer.read(data, sizes)
        assert peer.found == alone.found
        assert (peer.library.parser_exc is None) == (alone.library.parser_exc is None)
        assert peer.library.state == alone.library.state


@given(st.lists(FRAMES, max_size=12))
def test_a_message_alone_in_a_read_is_found_as_all_others_are(sent: list[bytes]) -> None:
    with_lone, without = Peer(looks_for_lone=True), Peer()
    for peer in (with_lone, without):
        for one in sent:
            peer.read(one, [SMALL_BYTES - 1])
    assert with_lone.found == without.found
    assert with_lone.library.state == without.library.state


@pytest.mark.parametrize(("size", "found"), [(1, 0), (2, 1), (125, 1), (126, 1), (8000, 1), (9000, 0)])
def test_a_short_message_may_be_alone(size: int, found: int) -> None:
    peer = Peer(looks_for_lone=True)
    peer.read(frame(0x82, b"m" * size), [BUFFER_BYTES])
    assert (peer.found, peer.lone) == ([b"m" * size], found)


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


def test_where_text_is_spoken_both_kinds_are_taken() -> None:
    peer = Peer(whole=TEXT_MESSAGE)
    peer.read(frame(0x81, b"text") + frame(0x82, b"binary"), [BUFFER_BYTES])
    assert peer.found == [b"text", b"binary"]
    assert peer.quick == 2


def held_bytes(peer: Peer) -> int:
    """Return the size of the buffer while nothing incomplete is in it."""
    return len(peer.frames.space)


def test_small_messages_need_a_small_buffer_only() -> None:
    peer = Peer()
    assert held_bytes(peer) == SMALL_BYTES
    for _ in range(100):
        peer.read(frame(0x82, b"m" * 2000), [700, SMALL_BYTES - 1])
    assert held_bytes(peer) == SMALL_BYTES
    assert peer.quick == 100


def test_a_read_that_fills_the_buffer_makes_it_large() -> None:
    peer = Peer()
    peer.read(frame(0x82, b"m" * MAX_BYTES), [BUFFER_BYTES])
    assert held_bytes(peer) == BUFFER_BYTES
    assert peer.quick == 1


def test_a_connection_with_pings_only_gives_a_large_buffer_back() -> None:
    peer = Peer()
    large, ping = frame(0x82, b"m" * MAX_BYTES), frame(0x89, b"")
    sizes = []
    for _ in range(2):
        peer.read(large, [BUFFER_BYTES])
        for _ in range(7):
            peer.read(ping, [BUFFER_BYTES])
            sizes.append(held_bytes(peer))
    assert sizes == [BUFFER_BYTES] * 14
    peer.read(ping, [BUFFER_BYTES])
    assert held_bytes(peer) == SMALL_BYTES


def test_a_frame_that_is_begun_survives_each_change_of_the_buffer() -> None:
    peer = Peer()
    begun, rest = frame(0x82, b"m" * 1000)[:900], frame(0x82, b"m" * 1000)[900:]
    peer.read(frame(0x82, b"L" * MAX_BYTES), [BUFFER_BYTES])
    for piece in (begun[i : i + 90] for i in range(0, 900, 90)):
        peer.read(piece, [BUFFER_BYTES])
    assert len(peer.frames.space) == SMALL_BYTES - len(begun)
    peer.read(rest, [BUFFER_BYTES])
    assert peer.found[1:] == [b"m" * 1000]


def test_bytes_that_were_read_elsewhere_may_be_more_than_the_buffer_holds() -> None:
    peer = Peer()
    peer.frames.take(frame(0x82, b"a" * 100_000) * 5 + frame(0x82, b"b"))
    assert peer.found == [b"a" * 100_000] * 5 + [b"b"]


def test_nothing_is_held_after_the_end() -> None:
    peer = Peer()
    peer.frames.let_go()
    peer.frames.take(b"x" * 10)
    assert len(peer.frames.space) == 0


@pytest.mark.parametrize("size", [0, 1, 125, 126, 1024, 1025, SHORT_BYTES])
@pytest.mark.parametrize("lead", [b"{", b"\0"])
def test_a_short_frame_is_the_one_of_every_message(
    size: int, lead: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = (lead * size)[:1] + b"m" * max(0, size - 1)
    monkeypatch.setattr(client_frames, "_masks", [b"\x01\xfe\x80\x7f"] * 2)
    assert [short_frame(message)] == message_frames(message)


def test_the_first_messages_are_masked_without_the_library_and_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_frames, "_apply_mask", None)
    monkeypatch.setattr(client_frames, "_masked_here", 0)
    mask = b"\x01\xfe\x80\x7f"
    messages = [bytes(range(size)) for size in range(client_frames._FEW)]
    here = [client_frames._masked(message, mask) for message in messages]
    assert client_frames._apply_mask is None
    assert [client_frames._masked(message, mask) for message in messages] == here
    assert client_frames._apply_mask is not None


@pytest.mark.parametrize("fragment_bytes", [4, 100])
def test_what_begins_with_a_zero_byte_is_sent_as_binary(fragment_bytes: int) -> None:
    frames = ServerFrames(FrameLimits(1000, 1000, 1000))
    for message, lead in ((b"\0\xff in binary", 0x02), (b'{"in":"text"}', 0x01)):
        sent = b"".join(message_frames(message, fragment_bytes))
        assert (sent[0] & 0x7F, sent[0] & 0x80 != 0) == (lead, fragment_bytes == 100)
        assert frames.feed(sent) == [message]
