"""What nobody should send: HTTP and frames that are wrong, too large, too slow or too many."""

from __future__ import annotations

import random
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.relay.frames import OTHER, InvalidFrame, checked_key, peek
from execserver.wire.relay_frames import (
    AckFrame,
    Body,
    Data,
    Handshake,
    Heartbeat,
    RelayFrame,
    Reset,
    Resume,
    decode_frame,
    encode_frame,
)
from tests.support.relay_process import ENVIRONMENT, Peer, Refused, RelayProcess, masked_frame

WAIT = 20.0
HELLO = RelayFrame("s", Handshake(b"hello"))


def talk(relay: RelayProcess, data: bytes) -> bytes:
    """Send bytes on a fresh connection; return all that comes until its end."""
    with socket.create_connection(("127.0.0.1", relay.port), WAIT) as sock:
        received = b""
        try:
            sock.sendall(data)
            while piece := sock.recv(65_536):
                received += piece
        except ConnectionError:
            pass
        return received


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x00\x01\x02\r\n\r\n", b"400"),
        (b"GET /readyz HTTP/1.1\r\n\r\n", b"400"),  # no host
        (b"GET / HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 40_000 + b"\r\n\r\n", b"431"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", b"501"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n" + b"x" * 20_000, b"413"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
    ],
)
def test_what_is_no_request_is_answered_and_ended(relay: RelayProcess, data: bytes, status: bytes) -> None:
    assert talk(relay, data).split(b" ")[:2] == [b"HTTP/1.1", status]


def test_a_request_that_does_not_end_is_dropped() -> None:
    begun = (b"", b"GET /rea", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab")
    with RelayProcess(limits={"unauthenticated_s": 2.0}) as relay:  # a whole one needs less on any machine
        with ThreadPoolExecutor(len(begun)) as threads:
            assert list(threads.map(lambda data: talk(relay, data), begun)) == [b""] * len(begun)
        assert talk(relay, b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_requests_share_a_connection_and_may_be_pipelined(relay: RelayProcess) -> None:
    one = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = talk(relay, one * 3 + last)
    assert (answer.count(b"HTTP/1.1 200"), answer.count(b"HTTP/1.1 404")) == (3, 1)


def test_a_body_in_chunks_and_with_a_question_before_it(relay: RelayProcess) -> None:
    head = (
        f"POST /cloud/environment/{ENVIRONMENT}/register HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    answer = talk(relay, head.encode() + b"2\r\n{}\r\n0\r\n\r\n")
    assert b"HTTP/1.1 401" in answer


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x82\x05hello", 1002),  # not masked
        (masked_frame(2, bytes(262_145)), 1009),
        (masked_frame(2, b"x" * 200_000, final=False) + masked_frame(0, b"y" * 100_000), 1009),
        (masked_frame(2, b"x", final=False) + masked_frame(0, b"y", final=False) * 70, 1009),
        (masked_frame(3, b""), 1002),
        (b"\xf2\x80\0\0\0\0", 1002),
        (masked_frame(1, b"\xff"), 1007),
    ],
)
def test_websocket_frames_that_may_not_be(relay: RelayProcess, token: str, data: bytes, code: int) -> None:
    with relay.executor(token) as executor, relay.harness(token) as harness:
        harness.send_raw(data)
        assert harness.wait_for_end() == []
        assert harness.close_code == code
        executor.send("other", Data(0, b"x"))
        with relay.harness(token) as other:
            other.send("s", HELLO.body)
            assert executor.receive() == HELLO


def test_invalid_relay_frames_are_dropped_and_then_end_the_link(relay: RelayProcess, token: str) -> None:
    with relay.executor(token) as executor, relay.harness(token) as harness:
        invalid = [b"", b"\x08", b"\x08\x02\x12\x01a\x4a\x00", b"\x08\x01\x12\x01 \x4a\x00", bytes(100)]
        for message in invalid:
            harness.send_message(message)
        harness.send("s", HELLO.body)
        assert executor.receive() == HELLO
        for _ in range(65):
            harness.send_message(b"nonsense")
        assert harness.wait_for_end() == []
        assert harness.close_code == 1008


def test_stream_ids_are_bounded(relay: RelayProcess, token: str) -> None:
    with relay.executor(token) as executor, relay.harness(token) as harness:
        harness.send("i" * 121, HELLO.body)
        harness.send("é" * 60, HELLO.body)
        assert executor.receive().stream_id == "é" * 60


def test_thousands_of_mutated_frames_harm_nobody_else(relay: RelayProcess, token: str) -> None:
    random.seed(5)
    samples = [
        encode_frame(RelayFrame("mine", body, 3, 9))
        for body in (Data(7, b"p" * 50), Resume(4), AckFrame(), Heartbeat(), Handshake(b"h" * 30))
    ]
    with relay.executor(token) as executor, relay.harness(token, 1) as honest:
        honest.send("honest", HELLO.body)
        executor.receive()
        for seed in range(20):
            hostile = relay.harness(token, 100 + seed)
            try:
                for _ in range(60):
                    data = bytearray(random.choice(samples))
                    for _ in range(random.randrange(1, 4)):
                        data[random.randrange(len(data))] = random.randrange(256)
                    hostile.send_message(bytes(data[: random.randrange(1, len(data) + 1)]))
            except (BrokenPipeError, ConnectionResetError):
                pass
            hostile.close()
        honest.send("honest", Data(0, b"still here"))
        while True:
            message = executor.receive_message()
            assert message is not None
            try:
                frame = decode_frame(message)
            except ValueError:
                continue
            if frame.stream_id == "honest":
                assert frame.body == Data(0, b"still here")
                break
        executor.send("honest", Data(0, b"answer"))
        assert honest.receive() == RelayFrame("honest", Data(0, b"answer"))


def test_a_credential_is_worthless_in_another_environment(relay: RelayProcess, token: str) -> None:
    other = relay.token("box-2")
    with relay.executor(token), relay.executor(other, environment_id="box-2"):
        for url in (relay.grant(token)["url"], relay.register(other, 0, "box-2")["url"]):
            there = {"box-1": "box-2", "box-2": "box-1"}
            name = url.partition("/rendezvous/")[2].partition("?")[0]
            with pytest.raises(Refused) as caught:
                Peer(url.replace(f"/rendezvous/{name}?", f"/rendezvous/{there[name]}?"))
            assert caught.value.status == 401


@pytest.mark.parametrize(
    "message",
    [
        b"\x08" + b"\xff" * 9 + b"\x01" + b"\x12\x01s",  # a version of 2**64 - 1
        b"\x08" + b"\x80" * 200_000 + b"\x01",  # a number that does not end
        b"\x08\x01\x12" + b"\xff" * 9 + b"\x01s",  # an id of 2**64 - 1 bytes
        b"\x08\x01\x12\xff\xff\xff\xff\x07s",
        b"\x08\x01" + b"\xf8\x07\x01" * 80_000,  # unknown members only
        b"\x0b" * 200_000,  # groups in groups
    ],
)
def test_hostile_lengths_in_a_frame_cost_nothing(relay: RelayProcess, token: str, message: bytes) -> None:
    with (
        relay.executor(token) as executor,
        relay.harness(token) as hostile,
        relay.harness(token, 7) as honest,
    ):
        for _ in range(20):
            hostile.send_message(message)
        honest.send("honest", HELLO.body)
        assert executor.receive().stream_id == "honest"
        assert relay.metric("execserver_relay_streams") == 1


IDS = st.text(min_size=1, max_size=40).filter(lambda text: text.strip() != "")
BODIES = st.one_of(
    st.builds(Data, st.integers(0, 2**32 - 1), st.binary(min_size=1, max_size=300)),
    st.builds(AckFrame),
    st.builds(Resume, st.integers(0, 2**32 - 1)),
    st.builds(Reset, st.text(min_size=1, max_size=10)),
    st.builds(Heartbeat),
    st.builds(Handshake, st.binary(min_size=1, max_size=300)),
)
NUMBERS = st.integers(0, 2**32 - 1)


@given(IDS, BODIES, NUMBERS, NUMBERS)
def test_the_quick_look_sees_what_the_receiver_sees(stream_id: str, body: Body, ack: int, bits: int) -> None:
    try:
        data = encode_frame(RelayFrame(stream_id, body, ack, bits))
    except ValueError:
        return
    key, _ = peek(data)
    assert key in (b"", stream_id.encode())
    assert checked_key(data, 500) == stream_id.encode()


@given(IDS, BODIES, NUMBERS, NUMBERS, st.data())
def test_the_quick_look_never_sees_another_id(
    stream_id: str, body: Body, ack: int, bits: int, data: st.DataObject
) -> None:
    try:
        frame = bytearray(encode_frame(RelayFrame(stream_id, body, ack, bits)))
    except ValueError:
        return
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    frame += data.draw(st.binary(max_size=8))
    try:
        seen = decode_frame(bytes(frame)).stream_id.encode()
    except ValueError:
        return
    key, kind = peek(bytes(frame))
    assert key == seen or (key, kind) == (b"", OTHER)


def test_a_checked_id_is_bounded() -> None:
    with pytest.raises(InvalidFrame):
        checked_key(encode_frame(RelayFrame("i" * 121, Heartbeat())), 120)
