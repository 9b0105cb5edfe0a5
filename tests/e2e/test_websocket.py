"""WebSocket behaviour beyond the messages: kinds of frames, pings, addresses, socket options."""

from __future__ import annotations

import base64
import socket
from contextlib import suppress

import pytest

from tests.e2e.conftest import Connect, StartServer
from tests.support.peer import PeerTimeout
from tests.support.sockets import accepted_socket, cannot_borrow, need_ipv6
from tests.support.waiting import wait_until
from tests.support.ws_peer import BINARY, CONTINUATION, PING, PONG, TEXT, WsPeer

HELLO = b'{"id":1,"method":"initialize","params":{"clientName":"c"}}'
UNKNOWN = b'{"id":2,"method":"no/such"}'


def ask(peer: WsPeer) -> None:
    """Wait for further answers: a pong may come behind the answer to what came with its ping."""
    for _ in range(2):
        peer.send_text(UNKNOWN)
        peer.take({"id": 2})


def pings_of(peer: WsPeer) -> list[bytes]:
    """Return the payloads of the pings so far, after a short look whether there are more."""
    with suppress(PeerTimeout):
        peer.receive_text(0.02)
    return [frame.payload for frame in peer.control if frame.opcode == PING]


def test_binary_messages_are_taken_and_answered_with_text(connect: Connect) -> None:
    peer = connect()
    peer.send_binary(HELLO)
    assert "sessionId" in peer.take({"id": 1})["result"]


def test_a_message_may_be_cut_within_a_character_and_around_a_ping(connect: Connect) -> None:
    peer = connect()
    message = '{"id":"ü","method":"no/such"}'.encode()
    cut = message.index(b"\xc3") + 1
    peer.send_frame(TEXT, message[:cut], final=False)
    peer.send_frame(PING, b"now")
    peer.send_frame(CONTINUATION, b"", final=False)
    peer.send_frame(CONTINUATION, message[cut:])
    assert peer.take({"id": "ü"})["error"]["code"] == -32601
    ask(peer)
    assert [(frame.opcode, frame.payload) for frame in peer.control] == [(PONG, b"now")]


@pytest.mark.parametrize("payload", [b"", b"x" * 125], ids=["empty", "longest"])
def test_a_ping_is_answered_with_its_payload(connect: Connect, payload: bytes) -> None:
    peer = connect()
    peer.send_frame(PING, payload)
    ask(peer)
    assert [(frame.opcode, frame.payload) for frame in peer.control] == [(PONG, payload)]


@pytest.mark.ours_only("every 30 s there")
def test_the_server_pings_with_an_empty_payload(start_server: StartServer, connect: Connect) -> None:
    peer = connect(start_server(settings={"ping_interval_s": 0.1}))
    wait_until(lambda: len(pings_of(peer)) >= 3)
    assert set(pings_of(peer)) == {b""}


@pytest.mark.ours_only("every 30 s there")
def test_a_peer_that_answers_no_ping_is_kept(start_server: StartServer, connect: Connect) -> None:
    peer = connect(start_server(settings={"ping_interval_s": 0.05}))
    peer.answers_pings = False
    wait_until(lambda: len(pings_of(peer)) >= 5)
    peer.open_session()


def test_broken_json_leaves_the_connection_usable(connect: Connect) -> None:
    peer = connect()
    peer.send_frame(BINARY, b"\xff\xfe")
    peer.send_text("{")
    expected = f"websocket {peer.address}: "
    for _ in range(2):
        error = peer.take({"id": -1})["error"]
        assert error["code"] == -32600
        assert expected in error["message"]
    assert peer.open_session()


@pytest.mark.ours_only("an own extension")
def test_a_broken_binary_form_leaves_the_connection_usable(connect: Connect) -> None:
    peer = connect()
    peer.open_session()
    about = {"processId": "p", "argv": ["cat"], "cwd": "file:///", "env": {}, "tty": False, "pipeStdin": True}
    peer.call("process/start", about)
    text = b'{"id":"w","method":"process/write","params":{"processId":"p","chunk":"","writeId":"1"}}'
    data = b"\x00\xff" * 2500
    for length in (len(text) + 1, len(text) - 1, 2**32 - 1):
        peer.send_frame(BINARY, b"\0" + length.to_bytes(4, "big") + text + data)
        assert peer.take({"id": -1})["error"]["code"] == -32600
    peer.send_frame(BINARY, b"\0" + len(text).to_bytes(4, "big") + text + data)
    assert peer.take({"id": "w"}) == {"id": "w", "result": {"status": "accepted"}}
    output = b""
    while len(output) < len(data):
        output += base64.b64decode(peer.take({"method": "process/output"})["params"]["chunk"])
    assert output == data


@pytest.mark.ours_only("the reference sets none of these")
@pytest.mark.skipif(cannot_borrow() != "", reason=cannot_borrow())
def test_accepted_sockets_send_at_once_and_watch_their_peer(
    start_server: StartServer, connect: Connect
) -> None:
    server = start_server()
    early = connect(server)  # the kernel accepts it while the server is still starting
    early.open_session()
    for peer in (early, connect(server)):
        with accepted_socket(server.pid, peer.socket.getsockname()[:2]) as accepted:
            check_options(accepted)


def check_options(accepted: socket.socket) -> None:
    tcp = {
        name: accepted.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
        for name in ("TCP_NODELAY", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    }
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert tcp == {
        "TCP_NODELAY": 1,
        "TCP_KEEPIDLE": 8,
        "TCP_KEEPINTVL": 5,
        "TCP_KEEPCNT": 2,
        "TCP_USER_TIMEOUT": 16_000,
    }


def test_an_ipv6_listener_serves_and_names_its_peer(start_server: StartServer, connect: Connect) -> None:
    need_ipv6()
    server = start_server(listen="ws://[::1]:0")
    assert server.url.startswith("ws://[::1]:")
    peer = connect(server)
    peer.send_text("{")
    assert f"websocket {peer.address}: " in peer.take({"id": -1})["error"]["message"]
    assert peer.open_session()
