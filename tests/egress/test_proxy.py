"""What a network proxy lets through, and how: real sockets on both sides."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress

import gevent
import msgspec
import pytest
from gevent import socket

from execserver.egress.decisions import Action, Mode, Verdict
from execserver.protocol.envelope import ErrorBody, ErrorMessage, Response
from execserver.services.egress import peers
from execserver.services.egress.asking import verdict_of
from execserver.services.egress.peers import Peers
from execserver.settings import Settings
from tests.support.egress_scene import PUBLIC, Names, get, heard, rules, scene, tunnel, upstream

MIB = 1 << 20


def told(verdict: Verdict) -> tuple[Action, str]:
    return verdict.action, verdict.reason


@pytest.mark.parametrize(
    ("result", "decided"),
    [
        (b'{"decision":{"type":"allow"}}', (Action.ALLOW, "not_allowed")),
        (b'{"decision":{"type":"allow","reason":"x","more":1}}', (Action.ALLOW, "not_allowed")),
        (b'{"decision":{"type":"deny","reason":"why"}}', (Action.DENY, "why")),
        (b'{"decision":{"type":"ask","reason":"why"}}', (Action.ASK, "why")),
        (b'{"decision":{"type":"deny","reason":""}}', (Action.DENY, "policy_denied")),
        (b'{"decision":{"type":"deny"}}', (Action.DENY, "not_allowed")),
        (b'{"decision":{"type":"deny","reason":"%b"}}' % (b"x" * 1025), (Action.DENY, "not_allowed")),
        (b'{"decision":{"type":"Allow"}}', (Action.DENY, "not_allowed")),
        (b'{"decision":"allow"}', (Action.DENY, "not_allowed")),
        (b'{"decision":{"type":["allow"]}}', (Action.DENY, "not_allowed")),
        (b"{}", (Action.DENY, "not_allowed")),
        (b"null", (Action.DENY, "not_allowed")),
    ],
)
def test_only_a_clear_yes_is_one(result: bytes, decided: tuple[Action, str]) -> None:
    assert told(verdict_of(Response(1, msgspec.Raw(result)))) == decided


def test_an_error_and_silence_are_a_no() -> None:
    assert told(verdict_of(None)) == (Action.DENY, "not_allowed")
    assert told(verdict_of(ErrorMessage(ErrorBody(1, ""), 1))) == (Action.DENY, "not_allowed")


def send_all_and_end(sock: socket.socket, data: bytes) -> None:
    sock.sendall(data)
    sock.shutdown(socket.SHUT_WR)


def test_much_goes_through_a_tunnel_both_ways() -> None:
    content = os.urandom(MIB) * 24

    def swap(sock: socket.socket) -> None:
        writer = gevent.spawn(sock.sendall, content)
        digest = hashlib.sha256()
        while data := sock.recv(MIB):
            digest.update(data)
        writer.join()
        sock.sendall(digest.digest())

    with scene(rules("127.0.0.1")) as here, upstream(swap) as server, here.connection() as sock:
        sock.sendall(tunnel(server.place))
        assert sock.recv(100).startswith(b"HTTP/1.1 200 OK")
        writer = gevent.spawn(send_all_and_end, sock, content)
        received = bytearray()
        while data := sock.recv(MIB):
            received += data
        writer.join()
        assert hashlib.sha256(received[: len(content)]).digest() == hashlib.sha256(content).digest()
        assert bytes(received[len(content) :]) == hashlib.sha256(content).digest()


def test_a_plain_body_without_a_length_ends_with_the_connection() -> None:
    with scene(rules("127.0.0.1")) as here, upstream(b"HTTP/1.1 200 OK\r\n\r\nbody") as server:
        answer = here.say(get(server.place, "Connection: close"))
        assert answer.endswith(b"connection: close\r\n\r\n4\r\nbody\r\n0\r\n\r\n")
        old = f"GET http://{server.place}/ HTTP/1.0\r\nHost: {server.place}\r\n\r\n".encode()
        assert here.say(old).endswith(b"connection: close\r\n\r\nbody")


def test_interim_answers_are_passed_on() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n"
    answer = interim + b"HTTP/1.1 204 No Content\r\n\r\n"
    with scene(rules("127.0.0.1")) as here, upstream(answer) as server:
        assert here.say(get(server.place)) == answer


def test_a_server_that_answers_early_is_heard() -> None:
    def early(sock: socket.socket) -> None:
        sock.recv(100)
        sock.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        gevent.sleep(1)

    with scene(rules("127.0.0.1")) as here, upstream(early) as server, here.connection() as sock:
        sock.sendall(get(server.place, f"Content-Length: {64 * MIB}", method="POST"))
        assert b"413 Too Large" in heard(sock)


def test_what_is_refused_does_not_end_the_connection() -> None:
    with scene(rules("127.0.0.1", denied=("b",))) as here, upstream() as server, here.connection() as sock:
        sock.sendall(get("b", "Content-Length: 4", method="POST") + b"body")
        assert b"blocked-by-denylist" in sock.recv(4096)
        sock.sendall(tunnel("b:443"))
        assert b"blocked-by-denylist" in sock.recv(4096)
        sock.sendall(get(server.place))
        assert sock.recv(4096).startswith(b"HTTP/1.1 200")


def test_socks_reaches_what_is_allowed() -> None:
    with scene(rules("127.0.0.1")) as here, upstream() as server, here.connection(socks=True) as sock:
        sock.sendall(b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01" + server.port.to_bytes(2))
        assert sock.recv(2) == b"\x05\x00"
        assert sock.recv(10)[:8] == b"\x05\x00\x00\x01\x7f\x00\x00\x01"
        sock.sendall(get(server.place))
        assert sock.recv(4096).startswith(b"HTTP/1.1 200")


def test_the_limited_mode_reads_only() -> None:
    with scene(rules("127.0.0.1", mode=Mode.LIMITED)) as here, upstream() as server:
        assert here.status(get(server.place)) == 200
        assert here.status(get(server.place, "Content-Length: 0", method="POST")) == 403
        assert here.status(tunnel(server.place)) == 403
        assert here.reasons == ["allow", "allow", "method_not_allowed", "allow", "mitm_required"]


@pytest.mark.parametrize(
    ("host", "via_upstream", "goes_up"),
    [
        ("public.example", 0, True),
        ("10.0.0.1", 0, False),
        ("10.0.0.1", 1, True),
        ("127.0.0.1", 1, False),
    ],
)
def test_upstream_proxies_get_what_is_meant_for_them(host: str, via_upstream: int, goes_up: bool) -> None:
    names = Names(public_example=[[PUBLIC]])
    settings = Settings(proxy_private_ips_via_upstream=via_upstream)
    with upstream() as up:
        environ = {b"HTTP_PROXY": f"http://u:p@{up.place}".encode(), b"NO_PROXY": b"*"}
        names._answers["127.0.0.1"] = [["127.0.0.1"]]
        with scene(rules("*", local=True), names, environ=environ, settings=settings) as here:
            with suppress(TimeoutError), gevent.Timeout(2, TimeoutError()):
                here.status(get(f"{host}:1", path="/x"))
            line = f"GET http://{host}:1/x HTTP/1.1\r\n".encode()
            assert [data.startswith(line) for data in up.received] == [True] * goes_up
            assert all(b"proxy-authorization: Basic dTpw" in data for data in up.received)


def test_a_tunnel_through_an_upstream_proxy_needs_its_yes() -> None:
    names = Names(public_example=[[PUBLIC]], **{"127.0.0.1": [["127.0.0.1"]]})
    for answer, seen in ((b"HTTP/1.1 200 OK\r\n\r\nhi", b"hi"), (b"HTTP/1.1 407 No\r\n\r\n", b"")):
        with upstream(answer) as up:
            environ = {b"HTTPS_PROXY": f"http://{up.place}".encode()}
            with scene(rules("*"), names, environ=environ) as here:
                said = here.say(tunnel("public.example:443"))
                assert said.partition(b"\r\n\r\n")[2] == seen
                assert up.received[0] == tunnel("public.example:443")


def test_the_kernel_tells_whose_socket_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with scene(rules("*")) as here, here.connection() as sock:
        asked = Peers()
        by_netlink = asked.owner(sock.getsockname(), here.proxy.http_port)
        asked.close()
        monkeypatch.setattr(Peers, "_ask", _no_netlink)
        by_list = asked.owner(sock.getsockname(), here.proxy.http_port)
        assert by_netlink is not None
        assert by_list is not None
        assert (by_netlink.uid, by_netlink.inode) == (by_list.uid, by_list.inode)
        assert by_list.uid == os.geteuid()
        assert by_list.inode == os.fstat(sock.fileno()).st_ino
        assert asked.owner(("127.0.0.1", 1), here.proxy.http_port) is None
        assert asked.owner(("10.0.0.1", 1), here.proxy.http_port) is None


def test_a_late_answer_of_the_kernel_is_not_taken_for_the_next_one() -> None:
    with scene(rules("*")) as here, here.connection() as sock:
        asked = Peers()
        asked.owner(sock.getsockname(), here.proxy.http_port)
        if asked._netlink is None:
            pytest.skip("the kernel has no sock_diag for this process")
        sent, asked._netlink = asked._netlink, _Doubling(asked._netlink)  # type: ignore[assignment]
        found = asked.owner(sock.getsockname(), here.proxy.http_port)
        assert found is not None
        assert found.inode == os.fstat(sock.fileno()).st_ino
        assert sent.fileno() == -1
        asked.close()


class _Doubling:
    """A netlink socket whose next answer is to an older question."""

    def __init__(self, sock: object) -> None:
        self._sock = sock

    def send(self, data: bytes) -> None:
        older = data[:8] + b"\x01\0\0\0" + data[12:]
        self._sock.send(older)  # type: ignore[attr-defined]
        self._sock.send(data)  # type: ignore[attr-defined]

    def recv(self, most: int) -> bytes:
        return self._sock.recv(most)  # type: ignore[attr-defined,no-any-return]

    def close(self) -> None:
        self._sock.close()  # type: ignore[attr-defined]


def _no_netlink(self: Peers, client_port: int, proxy_port: int) -> None:
    raise OSError


def test_a_socket_is_found_below_its_process() -> None:
    with socket.socket() as sock:
        inode = os.fstat(sock.fileno()).st_ino
        assert peers._is_held_below(os.getpid(), inode)
        assert not peers._is_held_below(1 << 30, inode)
