"""How a WebSocket connection ends: Close frames with codes and reasons, both ways."""

from __future__ import annotations

import signal

import pytest

from tests.e2e.conftest import Connect, StartServer
from tests.support.proc import descriptor_count
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.ws_peer import CLOSE, CONTINUATION, PING, TEXT, Ending, WsPeer, client_frame

UNKNOWN = b'{"id":2,"method":"no/such"}'
NORMAL, GOING_AWAY, PROTOCOL_ERROR, INVALID_DATA, POLICY = 1000, 1001, 1002, 1007, 1008
close_frames = pytest.mark.ours_only("the reference sends no Close frames")


def close_reason(peer: WsPeer) -> str:
    (close,) = [frame for frame in peer.control if frame.opcode == CLOSE]
    return close.payload[2:].decode()


@close_frames
@pytest.mark.parametrize("code", [NORMAL, 4000])
def test_a_close_is_echoed_behind_the_answers(connect: Connect, code: int) -> None:
    peer = connect()
    peer.send_raw(client_frame(TEXT, UNKNOWN) + client_frame(CLOSE, code.to_bytes(2, "big") + b"bye"))
    assert peer.wait_for_end() is Ending.CLOSE_FRAME
    assert [message["id"] for message in peer.kept] == [2]
    assert peer.close_code == code


@close_frames
def test_a_close_without_code_is_echoed_without_one(connect: Connect) -> None:
    peer = connect()
    peer.send_frame(CLOSE)
    assert peer.wait_for_end() is Ending.CLOSE_FRAME
    assert [frame.payload for frame in peer.control] == [b""]


def test_a_close_ends_the_connection(connect: Connect) -> None:
    peer = connect()
    peer.send_frame(CLOSE, NORMAL.to_bytes(2, "big"))
    assert peer.wait_for_end() is not Ending.OPEN


@pytest.mark.parametrize(
    "message",
    [
        '{"method":"initialized"}',
        '{"method":"process/start","params":{}}',
        '{"id":1,"result":{}}',
        '{"error":{"code":1,"message":""},"id":1}',
        '{"id":1.5,"method":"environment/info"}',
    ],
    ids=["too early", "notification", "response", "error", "odd id"],
)
def test_what_cannot_be_answered_ends_the_connection(
    connect: Connect, server: ServerProcess, message: str
) -> None:
    peer = connect()
    peer.send_text(message)
    peer.send_text(UNKNOWN)
    ending = peer.wait_for_end()
    assert not peer.kept
    if server.flavour.is_reference:
        return
    assert (ending, peer.close_code) == (Ending.CLOSE_FRAME, POLICY)
    assert close_reason(peer) != ""


@pytest.mark.ours_only("there an answer may be lost")
def test_what_was_asked_before_the_violation_is_answered(connect: Connect) -> None:
    peer = connect()
    peer.send_raw(client_frame(TEXT, UNKNOWN) * 50 + client_frame(TEXT, b'{"id":1,"result":{}}'))
    assert peer.wait_for_end() is Ending.CLOSE_FRAME
    assert [message["id"] for message in peer.kept] == [2] * 50


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\x81\x02{}", PROTOCOL_ERROR),
        (client_frame(TEXT, b"{}", reserved=4), PROTOCOL_ERROR),
        (client_frame(3, b"{}"), PROTOCOL_ERROR),
        (client_frame(CONTINUATION, b"{}"), PROTOCOL_ERROR),
        (client_frame(TEXT, b"{", final=False) + client_frame(TEXT, b"}"), PROTOCOL_ERROR),
        (client_frame(PING, b"", final=False), PROTOCOL_ERROR),
        (client_frame(PING, b"x" * 126), PROTOCOL_ERROR),
        (client_frame(CLOSE, b"\x03"), PROTOCOL_ERROR),
        (client_frame(CLOSE, (1005).to_bytes(2, "big")), PROTOCOL_ERROR),
        (client_frame(TEXT, b'"\xff"'), INVALID_DATA),
    ],
    ids=[
        "unmasked",
        "reserved bit",
        "unknown opcode",
        "continues nothing",
        "message within a message",
        "fragmented ping",
        "long ping",
        "half a close code",
        "forbidden close code",
        "no utf-8",
    ],
)
@close_frames
def test_a_broken_frame_ends_the_connection_with_its_code(connect: Connect, frame: bytes, code: int) -> None:
    peer = connect()
    peer.send_text(UNKNOWN)
    peer.send_raw(frame)
    assert peer.wait_for_end() is Ending.CLOSE_FRAME
    assert [message["id"] for message in peer.kept] == [2]
    assert peer.close_code == code


@close_frames
@pytest.mark.parametrize("violation", [b"\x81\x02{}", client_frame(TEXT, b'{"method":"bogus"}')])
def test_a_peer_that_does_not_answer_a_close_is_dropped(
    start_server: StartServer, connect: Connect, violation: bytes
) -> None:
    server = start_server(settings={"close_timeout_s": 0.3})
    connect(server).open_session()
    before = descriptor_count(server.pid)
    peer = connect(server)
    peer.open_session()
    peer.send_raw(violation)
    assert peer.wait_for_end() is Ending.CLOSE_FRAME
    wait_until(lambda: descriptor_count(server.pid) == before)


@close_frames
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_ends_says_goodbye(
    start_server: StartServer, connect: Connect, number: signal.Signals
) -> None:
    server = start_server()
    peers = [connect(server) for _ in range(3)]
    peers[0].open_session()
    server.signal(number)
    for peer in peers:
        assert peer.wait_for_end() is Ending.CLOSE_FRAME
        assert (peer.close_code, close_reason(peer)) == (GOING_AWAY, "the server is shutting down")
    assert server.wait() == 0
