"""What programs may ask of a network proxy, in number, size and time; with real sockets on both sides."""

from __future__ import annotations

import gevent
import pytest
from gevent import socket

from execserver.egress import name_pace
from execserver.services.egress import http, proxy
from execserver.services.egress import tunnel as tunnel_module
from execserver.settings import Settings
from tests.support.egress_scene import get, heard, rules, scene, tunnel, upstream
from tests.support.greenlets import turns
from tests.support.waiting import wait_until


def test_a_head_without_end_is_refused() -> None:
    with scene(rules("*")) as here:
        assert here.say(b"GET http://a/ HTTP/1.1\r\n" + b"A: b\r\n" * 20_000).startswith(b"HTTP/1.1 400 ")


def test_a_slow_head_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEAD_S", 0.2)
    with scene(rules("*")) as here, here.connection() as sock:
        sock.sendall(b"GET http://a/ HTTP/1.1\r\n")
        assert sock.recv(100) == b""


def test_half_a_tunnel_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel_module, "HALF_OPEN_S", 0.2)

    def silent(sock: socket.socket) -> None:
        while sock.recv(100):
            pass
        gevent.sleep(30)

    with scene(rules("127.0.0.1")) as here, upstream(silent) as server, here.connection() as sock:
        sock.sendall(tunnel(server.place))
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(100) == b""


def test_a_process_with_too_many_connections_waits_and_then_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "MAX_CONNECTIONS", 4)
    with scene(rules("127.0.0.1")) as here, upstream() as server:
        waiting = [here.connection() for _ in range(6)]
        wait_until(lambda: len(here.proxy._connections) == 4, pause=gevent.sleep)
        waiting[5].sendall(get(server.place))
        turns()
        assert len(here.proxy._connections) == 4
        for sock in waiting[:4]:
            sock.close()
        assert waiting[5].recv(100).startswith(b"HTTP/1.1 200")
        for sock in waiting[4:]:
            sock.close()


def test_one_process_leaves_no_place_to_none() -> None:
    with scene(rules("127.0.0.1"), settings=Settings(egress_connections=3)) as here, upstream() as server:
        waiting = [here.connection() for _ in range(3)]
        late = here.connection()
        late.sendall(get(server.place))
        wait_until(lambda: not here.service.places.are_free_for(0), pause=gevent.sleep)
        waiting.pop().close()
        assert late.recv(100).startswith(b"HTTP/1.1 200")
        for sock in (*waiting, late):
            sock.close()


def test_many_new_names_are_looked_up_slowly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(name_pace, "BURST", 2)
    monkeypatch.setattr(name_pace, "PER_SECOND", 4.0)
    with scene(rules("**.a.example")) as here:
        for index in range(4):
            here.status(get(f"secret{index}.a.example"))
        assert here.names.asked == [f"secret{index}.a.example" for index in range(4)]
    said = [record.getMessage() for record in caplog.records]
    assert ["secret2.a.example" in said[0], "secret3.a.example" in said[1], len(said)] == [True, True, 2]


def test_a_name_of_any_length_is_bounded() -> None:
    with scene(rules("*")) as here:
        assert here.status(get(".".join(["a" * 63] * 4))) == 400
        assert here.names.asked == []


def test_datagrams_go_nowhere() -> None:
    with scene(rules("*")) as here, here.connection(socks=True) as sock:
        sock.sendall(b"\x05\x01\x00\x05\x03\x00\x01" + bytes(6))
        reply = heard(sock, 12)
        assert reply[2:6] == b"\x05\x00\x00\x01"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            datagrams.settimeout(0.2)
            relay = ("127.0.0.1", int.from_bytes(reply[10:12]))
            datagrams.sendto(b"\0\0\0\x01" + socket.inet_aton("127.0.0.1") + b"\x00\x35x", relay)
            with pytest.raises(OSError, match="timed out"):
                datagrams.recv(100)
        assert here.records == []
