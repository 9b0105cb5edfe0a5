"""The websocket to the rendezvous: its upgrade, limits, keep-alive, and every way it ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest
from gevent import socket
from websockets.uri import parse_uri

from execserver.remote.connecting import RendezvousConnector
from execserver.remote.rendezvous import (
    MAX_BYTES,
    ConnectFailed,
    ConnectionEnded,
    RendezvousSocket,
    UpgradeRefused,
)
from execserver.remote.rendezvous_urls import shown
from execserver.remote.tools import Timing
from execserver.wire.client_end import ClientEnd
from execserver.wire.client_frames import binary_frame
from tests.support.certificates import make_authority
from tests.support.relay import Peer, Relay, listen
from tests.support.waiting import wait_until


@pytest.fixture
def relay() -> Iterator[Relay]:
    """A rendezvous; the test is the harness."""
    with Relay() as relay:
        relay.routing = False
        yield relay


def connect(
    relay: Relay, timing: Timing | None = None, path: str = "/executor?sig=a%2Fb&x=é"
) -> RendezvousSocket:
    return RendezvousSocket.connect(f"ws://127.0.0.1:{relay.port}{path}", {}, timing)


def peer_of(relay: Relay) -> Peer:
    wait_until(lambda: relay.executors, pause=gevent.sleep)
    return relay.executor


def test_the_upgrade_holds_nothing_beyond_the_rules(relay: Relay) -> None:
    ws = connect(relay)
    lines = peer_of(relay).head.split("\r\n")
    assert lines[0] == "GET /executor?sig=a%2Fb&x=%C3%A9 HTTP/1.1"
    names = sorted(line.partition(":")[0].lower() for line in lines[1:])
    wanted = ["connection", "host", "sec-websocket-key", "sec-websocket-version", "upgrade", "x-request-id"]
    assert names == wanted
    (request_id,) = [line.partition(": ")[2] for line in lines if line.lower().startswith("x-request-id")]
    assert re.fullmatch("req_[0-9a-f]{32}", request_id)
    assert f"Host: 127.0.0.1:{relay.port}" in lines
    ws.close()


def test_binary_messages_go_both_ways_and_text_is_left_out(relay: Relay) -> None:
    ws = connect(relay)
    peer = peer_of(relay)
    for message in (b"", b"x", b"a" * 125, b"b" * 126, b"c" * 65535, b"d" * MAX_BYTES):
        ws.send(message)
        assert peer.received.get(timeout=20) == message
    peer.send(b"not for you", text=True)
    peer.send(b"e" * MAX_BYTES)
    assert ws.receive() == b"e" * MAX_BYTES
    ws.close()
    assert ws.receive() is None
    with pytest.raises(ConnectionEnded):
        ws.send(b"late")


def test_fragments_are_joined_up_to_the_limit(relay: Relay) -> None:
    ws = connect(relay)
    peer = peer_of(relay)
    half = MAX_BYTES // 2
    head = b"\x7f" + half.to_bytes(8, "big")
    peer.raw(b"\x02" + head + b"f" * half + b"\x80" + head + b"g" * half)
    assert ws.receive() == b"f" * half + b"g" * half
    peer.raw(b"\x01\x01t\x80\x01u")  # text in fragments
    peer.raw(b"\x02" + head + b"f" * half + b"\x00" + head + b"g" * half + b"\x80\x01h")
    assert ws.receive() is None
    assert "rules of WebSocket" in ws.ended_because


def test_a_frame_above_the_limit_ends_the_connection(relay: Relay) -> None:
    ws = connect(relay)
    peer_of(relay).raw(b"\x82\x7f" + (MAX_BYTES + 1).to_bytes(8, "big"))
    assert ws.receive() is None
    assert "rules of WebSocket" in ws.ended_because


def test_what_comes_with_the_answer_to_the_upgrade_is_not_lost() -> None:
    with listen() as listening:
        greenlet = gevent.spawn(answer_and_speak, listening)
        ws = RendezvousSocket.connect(f"ws://127.0.0.1:{listening.getsockname()[1]}/", {})
        assert ws.receive() == b"early"
        ws.close()
        greenlet.join()


def answer_and_speak(listening: socket.socket) -> None:
    from execserver.wire.accepting import accept_value

    sock, _ = listening.accept()
    with sock:
        head = sock.recv(65536).decode()
        key = re.search(r"Sec-WebSocket-Key: (\S+)", head)
        assert key is not None
        lines = ["HTTP/1.1 101 X", "upgrade: websocket", "connection: upgrade"]
        lines += [f"sec-websocket-accept: {accept_value(key[1])}", "", ""]
        sock.sendall("\r\n".join(lines).encode() + b"\x82\x05early")
        while sock.recv(65536):
            pass


@pytest.mark.parametrize("status", [302, 401, 404, 503])
def test_a_refused_upgrade_tells_its_status(relay: Relay, status: int) -> None:
    relay.upgrade_status = status
    with pytest.raises(UpgradeRefused) as refused:
        connect(relay)
    assert refused.value.status == status
    assert "sig" not in str(refused.value)


def answering(*pieces: bytes) -> ConnectFailed:
    """Connect to a server that sends these bytes and leaves; return the failure."""

    def serve() -> None:
        sock, _ = listening.accept()
        with sock:
            sock.recv(65536)
            for piece in pieces:
                sock.sendall(piece)

    with listen() as listening:
        greenlet = gevent.spawn(serve)
        with pytest.raises(ConnectFailed) as failed:
            RendezvousSocket.connect(f"ws://127.0.0.1:{listening.getsockname()[1]}/?sig=s", {})
        greenlet.join()
    assert "sig" not in str(failed.value)
    return failed.value


def test_an_answer_that_is_no_upgrade_is_told() -> None:
    assert "did not answer the upgrade in HTTP" in str(answering())
    assert "did not answer the upgrade in HTTP" in str(answering(b"SSH-2.0-x\r\n\r\n"))
    assert "did not answer the upgrade in HTTP" in str(answering(b"HTTP/1.1 101 X\r\n" + b"a: b\r\n" * 4000))
    assert "answered the upgrade wrongly" in str(answering(b"HTTP/1.1 101 X\r\nupgrade: websocket\r\n\r\n"))
    refused = answering(
        b"HTTP/1.1 403 X\r\nx-codex-rendezvous-rejection-reason: expired\r\ncontent-length: 9\r\n\r\n"
    )
    assert str(refused) == "the rendezvous answered 403 (expired)"


def test_connecting_has_a_limit() -> None:
    with listen() as listening:
        url = f"ws://127.0.0.1:{listening.getsockname()[1]}/"
        with pytest.raises(ConnectFailed, match=r"no answer within 0\.05 s"):
            RendezvousSocket.connect(url, {}, Timing(connect_s=0.05))


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://127.0.0.1/?sig=s", "no ws:// or wss:// URL"),
        ("ws://", "no ws:// or wss:// URL"),
        ("nonsense", "no ws:// or wss:// URL"),
        ("ws://127.0.0.1:1/?sig=s", "Connection refused (os error 111)"),
    ],
)
def test_an_address_that_leads_nowhere_is_told_without_its_query(url: str, text: str) -> None:
    with pytest.raises(ConnectFailed) as failed:
        RendezvousSocket.connect(url, {})
    assert text in str(failed.value)
    assert "sig" not in str(failed.value)


def test_only_the_place_of_a_url_is_shown() -> None:
    assert shown("wss://user:pw@host:1/path/token?sig=s#f") == "wss://host:1"
    assert shown("ws://[::1]:5?sig=s") == "ws://[::1]:5"
    assert shown("?sig=s") == "the address the registry gave"


def test_pings_go_out_and_come_back(relay: Relay) -> None:
    ws = connect(relay, Timing(ping_interval_s=0.02, pong_timeout_s=5))
    peer = peer_of(relay)
    reader = gevent.spawn(ws.receive)
    wait_until(lambda: peer.pings >= 3, pause=gevent.sleep)
    peer.ping(b"are you there?")
    peer.send(b"still here")
    assert reader.get(timeout=20) == b"still here"
    ws.close()


def test_a_peer_that_answers_no_ping_is_given_up(relay: Relay) -> None:
    ws = connect(relay, Timing(ping_interval_s=0.02, pong_timeout_s=0.05))
    peer_of(relay).answers_pings = False
    assert ws.receive() is None
    assert ws.ended_because == "no pong within 0.05 s"


def test_a_peer_that_stops_reading_is_given_up(relay: Relay) -> None:
    ws = connect(relay, Timing(ping_interval_s=0.05, pong_timeout_s=0.2))
    peer_of(relay).reads.clear()

    def flood() -> str:
        try:
            while True:
                ws.send(b"x" * 65536)
        except ConnectionEnded as ended:
            return str(ended)

    writer = gevent.spawn(flood)
    assert ws.receive() is None
    assert writer.get(timeout=20) == "no pong within 0.2 s"
    assert ws.ended_because == "no pong within 0.2 s"
    peer_of(relay).reads.set()


def test_a_lost_connection_is_told(relay: Relay) -> None:
    ws = connect(relay)
    peer_of(relay).send(b"last")
    peer_of(relay).drop()
    assert ws.receive() == b"last"
    assert ws.receive() is None
    assert "closed the connection" in ws.ended_because or "broke" in ws.ended_because


def test_a_peers_goodbye_is_told_with_its_code(relay: Relay) -> None:
    ws = connect(relay)
    peer_of(relay).raw(b"\x88\x02\x03\xe9")
    assert ws.receive() is None
    assert ws.ended_because == "the rendezvous closed the connection (1001)"


def test_a_proxy_is_asked_for_a_tunnel_also_for_plain_websockets(relay: Relay) -> None:
    asked: list[bytes] = []
    with listen() as listening:
        proxy = gevent.spawn(tunnel, listening, relay.port, asked)
        environ = {"ALL_PROXY": f"http://u:p@127.0.0.1:{listening.getsockname()[1]}"}
        ws = RendezvousSocket.connect("ws://rendezvous.test/executor?sig=s", environ)
        ws.send(b"through")
        assert peer_of(relay).received.get(timeout=20) == b"through"
        ws.close()
        proxy.kill()
        direct = f"ws://127.0.0.1:{relay.port}/executor"
        RendezvousSocket.connect(direct, environ | {"NO_PROXY": "127.0.0.1"}).close()
    lines = asked[0].split(b"\r\n")
    assert lines[0] == b"CONNECT rendezvous.test:80 HTTP/1.1"
    assert b"Proxy-Authorization: Basic dTpw" in lines


def tunnel(listening: socket.socket, port: int, asked: list[bytes]) -> None:
    sock, _ = listening.accept()
    with sock, socket.create_connection(("127.0.0.1", port)) as target:
        asked.append(sock.recv(65536))
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        back = gevent.spawn(copy, target, sock)
        copy(sock, target)
        back.kill()


def copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass


def test_a_proxy_that_refuses_is_told() -> None:
    def serve() -> None:
        sock, _ = listening.accept()
        with sock:
            sock.recv(65536)
            sock.sendall(b"HTTP/1.1 407 X\r\ncontent-length: 0\r\n\r\n")

    with listen() as listening:
        greenlet = gevent.spawn(serve)
        environ = {"HTTPS_PROXY": f"http://127.0.0.1:{listening.getsockname()[1]}"}
        with pytest.raises(ConnectFailed, match="the proxy answered 407"):
            RendezvousSocket.connect("wss://rendezvous.test/?sig=s", environ)
        greenlet.join()
    with pytest.raises(ConnectFailed, match="scheme `socks5` are not supported"):
        RendezvousSocket.connect("ws://rendezvous.test/", {"ALL_PROXY": "socks5://127.0.0.1:1"})


def test_tls_is_checked_against_ssl_cert_file(relay: Relay, tmp_path: Path) -> None:
    from gevent import ssl

    authority = make_authority()
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    (tmp_path / "server.pem").write_bytes(authority.issue("127.0.0.1"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(tmp_path / "server.pem"))

    def serve() -> None:
        for _ in range(2):
            sock, _ = listening.accept()
            try:
                with (
                    context.wrap_socket(sock, server_side=True) as secure,
                    socket.create_connection(("127.0.0.1", relay.port)) as target,
                ):
                    back = gevent.spawn(copy, target, secure)
                    copy(secure, target)
                    back.kill()
            except OSError:
                sock.close()

    with listen() as listening:
        greenlet = gevent.spawn(serve)
        url = f"wss://127.0.0.1:{listening.getsockname()[1]}/executor"
        with pytest.raises(ConnectFailed, match="CERTIFICATE_VERIFY_FAILED"):
            RendezvousSocket.connect(url, {"CODEX_CA_CERTIFICATE": str(tmp_path / "ca.pem")})
        ws = RendezvousSocket.connect(url, {"SSL_CERT_FILE": str(tmp_path / "ca.pem")})
        ws.send(b"secret" * 10_000)
        assert peer_of(relay).received.get(timeout=20) == b"secret" * 10_000
        ws.close()
        greenlet.kill()


def test_small_messages_leave_at_once_and_little_waits_in_the_kernel(relay: Relay) -> None:
    sock = RendezvousConnector({}).connect(parse_uri(f"ws://127.0.0.1:{relay.port}/"))
    with sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 64 * 1024


def test_what_leaves_at_once_arrives_whole_and_in_order(relay: Relay) -> None:
    ws = connect(relay)
    peer = peer_of(relay)
    messages = [bytes([number]) * 200_000 for number in range(100)]  # more than the kernel takes at once
    for message in messages:
        ws.writer.urgent(message)
        ws.writer.flush_at_once()
    assert [peer.received.get(timeout=20) for _ in messages] == messages
    ws.close()


def test_a_frame_that_has_begun_is_followed_by_no_goodbye(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws = connect(relay)
    peer = peer_of(relay)
    peer.reads.clear()
    while not ws.writer.is_inside_a_frame:
        ws.writer.urgent(b"x" * 200_000)
        ws.writer.flush_at_once()  # until the kernel takes only a part
    monkeypatch.setattr(ClientEnd, "goodbye", lambda self: pytest.fail("it would have gone into the frame"))
    ws.close()
    peer.reads.set()
    messages = list(iter(lambda: peer.received.get(timeout=20), None))
    assert set(messages) <= {b"x" * 200_000}


def test_answers_leave_before_the_next_read_without_the_writer(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws = connect(relay)
    peer = peer_of(relay)
    peer.send(b"ask")
    assert ws.receive() == b"ask"
    monkeypatch.setattr(ws, "_write", lambda buffers: pytest.fail("the writer was needed"))
    ws.writer.urgent(b"answer")
    reading = gevent.spawn(ws.receive)
    assert peer.received.get(timeout=20) == b"answer"
    ws.close()
    assert reading.get(timeout=20) is None


def test_a_frame_is_masked() -> None:
    for length in (0, 125, 126, 65535, 65536):
        frame = b"".join(binary_frame(b"z" * length))
        assert frame[0] == 0x82
        assert frame[1] & 0x80
        body = frame[-length:] if length else b""
        mask = frame[len(frame) - length - 4 : len(frame) - length]
        assert bytes(byte ^ mask[at % 4] for at, byte in enumerate(body)) == b"z" * length
