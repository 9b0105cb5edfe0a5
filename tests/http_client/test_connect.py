"""Connections: addresses tried side by side, names looked up beside the rest, proxies and tunnels."""

from __future__ import annotations

import _socket
import socket as plain_socket
import threading
import time
from typing import Any

import gevent
import pytest
from gevent import socket

from execserver.http_client import connect
from execserver.http_client.connect import SocketConnector
from execserver.protocol.errors import InternalError
from tests.support.http_peer import OK, Caller, Peer, answering, serving, silent
from tests.support.sockets import need_ipv6
from tests.support.waiting import wait_until

Found = list[tuple[Any, ...]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, Found]:
    """What the system's resolver answers for a name."""
    known: dict[bytes, Found] = {}

    def look_up(host: bytes, port: int, *_: int) -> Found:
        if host not in known:
            raise plain_socket.gaierror(plain_socket.EAI_NONAME, "unknown")
        return known[host]

    monkeypatch.setattr(_socket, "getaddrinfo", look_up)
    return known


def entry(host: str, port: int) -> tuple[Any, ...]:
    if ":" in host:
        return (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (host, port, 0, 0))
    return (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))


def test_numeric_hosts_are_not_looked_up(names: dict[bytes, Found]) -> None:
    with serving(silent) as server:
        sock = SocketConnector().connect("127.0.0.1", server.port)
        assert sock.getpeername() == ("127.0.0.1", server.port)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        sock.close()


def test_ipv6_is_spoken() -> None:
    need_ipv6()
    with serving(answering(OK), family=socket.AF_INET6) as server:
        assert Caller().ask(f"http://[::1]:{server.port}/")["status"] == 200
    assert f"host: [::1]:{server.port}".encode() in server.requests[0]


def test_an_address_that_refuses_gives_way_to_the_next(names: dict[bytes, Found]) -> None:
    with serving(silent) as gone:
        refusing = gone.port
    with serving(silent) as server:
        names[b"name"] = [entry("127.0.0.1", refusing), entry("127.0.0.1", server.port)]
        sock = SocketConnector().connect("name", 80)
        assert sock.getpeername()[1] == server.port
        sock.close()


def test_an_address_that_is_silent_gives_way_after_its_head_start(
    names: dict[bytes, Found], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "HEAD_START_S", 0.02)
    attempts: list[str] = []
    really = connect._connect

    def slow_first(address: connect.Address) -> socket.socket:
        attempts.append(address[1][0])
        if address[1][0] == "::1":
            gevent.sleep(60)
        return really(address)

    monkeypatch.setattr(connect, "_connect", slow_first)
    with serving(silent) as server:
        names[b"name"] = [entry("::1", server.port), entry("::2", 1), entry("127.0.0.1", server.port)]
        sock = SocketConnector().connect("name", 80)
        assert sock.getpeername() == ("127.0.0.1", server.port)
        sock.close()
    assert attempts == ["::1", "127.0.0.1"]  # the families take turns


def test_the_first_failure_is_told_when_all_fail(names: dict[bytes, Found]) -> None:
    with serving(silent) as one, serving(silent) as other:
        ports = [one.port, other.port]
    names[b"name"] = [entry("127.0.0.1", port) for port in ports]
    with pytest.raises(ConnectionRefusedError):
        SocketConnector().connect("name", 80)


def test_an_unknown_name_is_an_error_and_prints_nothing(
    names: dict[bytes, Found], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(plain_socket.gaierror):
        SocketConnector().connect("name", 80)
    gevent.sleep(0)
    assert capsys.readouterr().err == ""


def test_a_name_server_that_hangs_holds_up_nothing_else(
    names: dict[bytes, Found], monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def look_up(host: bytes, *_: int) -> Found:
        if host == b"hangs":
            release.wait(30)
        return names[host]

    monkeypatch.setattr(_socket, "getaddrinfo", look_up)
    try:
        with serving(answering(OK)) as server:
            names[b"name"] = [entry("127.0.0.1", server.port)]
            caller = Caller()
            with pytest.raises(InternalError, match="error sending request"):
                caller.ask("http://hangs/", timeout_ms=50)
            started = time.monotonic()
            assert caller.ask(f"http://name:{server.port}/")["status"] == 200
            assert time.monotonic() - started < 20
    finally:
        release.set()


# --- proxies ---------------------------------------------------------------------------------------------


def test_plain_requests_go_to_the_proxy_with_the_whole_url() -> None:
    with serving(answering(OK)) as proxy:
        caller = Caller({"http_proxy": f"http://u:p@{proxy.place}"})
        caller.ask("http://u:p@a.test:81/x?y#z", headers=[("x", "1")])
    assert proxy.requests == [
        b"GET http://a.test:81/x?y HTTP/1.1\r\nauthorization: Basic dTpw\r\nx: 1\r\naccept: */*\r\n"
        b"proxy-authorization: Basic dTpw\r\nhost: a.test:81\r\n\r\n"
    ]


def test_a_given_proxy_authorization_stays() -> None:
    with serving(answering(OK)) as proxy:
        caller = Caller({"http_proxy": f"http://u:p@{proxy.place}"})
        caller.ask("http://a.test/", headers=[("proxy-authorization", "mine")])
    assert b"\r\nproxy-authorization: mine\r\n" in proxy.requests[0]
    assert b"Basic" not in proxy.requests[0]


def test_every_request_of_a_chain_signs_in_with_the_proxy() -> None:
    moved = b"HTTP/1.1 302 X\r\nlocation: http://b.test/\r\ncontent-length: 0\r\n\r\n"
    with serving(answering(moved), answering(OK)) as proxy:
        Caller({"http_proxy": f"http://u:p@{proxy.place}"}).ask("http://a.test/")
    assert proxy.requests[1].startswith(b"GET http://b.test/ HTTP/1.1\r\n")
    assert b"\r\nproxy-authorization: Basic dTpw\r\n" in proxy.requests[1]


def test_exempted_hosts_are_asked_directly() -> None:
    with serving(answering(OK)) as server:
        caller = Caller({"http_proxy": "http://127.0.0.1:1", "no_proxy": "127.0.0.0/8"})
        assert caller.ask(server.url)["status"] == 200


def test_a_proxy_of_another_kind_is_named_in_the_error() -> None:
    with pytest.raises(InternalError) as caught:
        Caller({"ALL_PROXY": "socks5://127.0.0.1:1"}).ask("http://a.test/")
    assert caught.value.message == "http/request failed: proxies of scheme `socks5` are not supported"


@pytest.mark.parametrize(
    ("environ", "url", "request_head"),
    [
        (
            {"https_proxy": "http://{P}"},
            "https://a.test/x",
            b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n",
        ),
        ({"all_proxy": "{P}"}, "https://[::1]:4/", b"CONNECT [::1]:4 HTTP/1.1\r\nHost: [::1]:4\r\n\r\n"),
        (
            {"https_proxy": "http://u:p@{P}"},
            "https://a.test:444/",
            b"CONNECT a.test:444 HTTP/1.1\r\nHost: a.test:444\r\nProxy-Authorization: Basic dTpw\r\n\r\n",
        ),
    ],
)
@pytest.mark.parametrize("answer", [b"HTTP/1.1 407 X\r\ncontent-length: 0\r\n\r\n", b"junk", b""])
def test_a_proxy_that_opens_no_tunnel_fails_the_request(
    environ: dict[str, str], url: str, request_head: bytes, answer: bytes, certificates: str
) -> None:
    with serving(answering(answer)) as proxy:
        environ = {name: value.replace("{P}", proxy.place) for name, value in environ.items()}
        caller = Caller({**environ, "SSL_CERT_FILE": certificates})
        with pytest.raises(InternalError) as caught:
            caller.ask(url, headers=[("proxy-authorization", "mine")])
    assert caught.value.message == f"http/request failed: error sending request for url ({url})"
    assert proxy.requests == [request_head]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with certificates to trust."""
    from tests.support.certificates import make_authority

    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    path.write_bytes(make_authority().pem)
    return str(path)


def test_a_silent_proxy_is_bound_by_the_deadline(certificates: str) -> None:
    ended = []

    def play(peer: Peer) -> None:
        silent(peer)
        ended.append(True)

    with serving(play) as proxy:
        caller = Caller({"https_proxy": f"http://{proxy.place}", "SSL_CERT_FILE": certificates})
        with pytest.raises(InternalError, match="error sending request"):
            caller.ask("https://a.test/", timeout_ms=50)
        wait_until(lambda: ended, pause=gevent.sleep)
