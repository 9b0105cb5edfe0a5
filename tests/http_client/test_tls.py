"""https with an authority of the test's own: who is trusted, what is refused, and bodies over TLS."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import gevent
import pytest
from gevent import socket
from gevent.ssl import PROTOCOL_TLS_SERVER, SSLContext

from execserver.http_client.exchange import Exchange
from execserver.http_client.tls import Tls
from execserver.http_client.trust import NoTrust
from execserver.protocol.errors import InternalError
from tests.support.certificates import Authority, make_authority
from tests.support.http_peer import OK, Caller, Peer, answering, serving, silent

SO_RCVBUFFORCE = 33


@pytest.fixture(scope="module")
def authority() -> Authority:
    return make_authority()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Path:
    """Holds ca.pem and the certificates of servers."""
    path = tmp_path_factory.mktemp("tls")
    (path / "ca.pem").write_bytes(authority.pem)
    (path / "good.pem").write_bytes(authority.issue("localhost", "127.0.0.1"))
    (path / "other.pem").write_bytes(authority.issue("other.test"))
    (path / "expired.pem").write_bytes(authority.issue("localhost", "127.0.0.1", days=-1))
    (path / "stranger.pem").write_bytes(make_authority().issue("localhost", "127.0.0.1"))
    return path


def context(folder: Path, name: str = "good") -> SSLContext:
    made = SSLContext(PROTOCOL_TLS_SERVER)
    made.load_cert_chain(folder / f"{name}.pem")
    made.set_alpn_protocols(["h2", "http/1.1"])
    return made


def trusting(folder: Path, **more: str) -> Caller:
    return Caller({"SSL_CERT_FILE": str(folder / "ca.pem"), **more})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_trusted_server_is_asked_in_http_1_1(folder: Path, host: str) -> None:
    chosen = []

    def play(peer: Peer) -> None:
        chosen.append(peer.sock.selected_alpn_protocol())  # type: ignore[union-attr]
        peer.read_request()
        peer.send(OK)

    with serving(play, tls=context(folder)) as server:
        assert trusting(folder).ask(f"https://{host}:{server.port}/x")["status"] == 200
    assert chosen == ["http/1.1"]
    assert server.requests == [
        b"GET /x HTTP/1.1\r\naccept: */*\r\nhost: %b:%d\r\n\r\n" % (host.encode(), server.port)
    ]


@pytest.mark.parametrize("name", ["other", "expired", "stranger"])
def test_other_servers_are_not_asked(folder: Path, name: str) -> None:
    with serving(answering(OK), tls=context(folder, name)) as server:
        with pytest.raises(InternalError) as caught:
            trusting(folder).ask(server.url)
        assert caught.value.message == f"http/request failed: error sending request for url ({server.url}/)"
    assert server.requests == []


def test_an_unknown_authority_is_not_trusted(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(make_authority().pem)
    with serving(answering(OK), tls=context(folder)) as server, pytest.raises(InternalError):
        trusting(tmp_path).ask(server.url)


def test_a_plain_server_is_no_tls_server(folder: Path) -> None:
    with serving(lambda peer: peer.send(OK)) as server, pytest.raises(InternalError, match="error sending"):
        trusting(folder).ask(f"https://{server.place}/")


def test_a_silent_handshake_is_bound_by_the_deadline(folder: Path) -> None:
    with serving(silent) as server, pytest.raises(InternalError, match="error sending request"):
        trusting(folder).ask(f"https://{server.place}/", timeout_ms=50)


def test_bodies_arrive_whole_and_in_few_pieces(folder: Path) -> None:
    body = bytes(range(256)) * 12_000
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
    caller = trusting(folder)
    with serving(answering(head, body), tls=context(folder)) as server:
        assert caller.ask(server.url)["body"] == body
        assert caller.stream_all(server.url) == (body, None)


def test_a_large_request_goes_out_while_the_answer_comes_in(folder: Path) -> None:
    size = 6_000_000

    def play(peer: Peer) -> None:
        left = size
        data = peer.sock.recv(65536).partition(b"\r\n\r\n")[2]
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        while True:
            peer.send(data)
            left -= len(data)
            if not left:
                return
            data = peer.sock.recv(65536)

    with serving(play, tls=context(folder)) as server:
        got = trusting(folder).ask(server.url, method="POST", body_base64=b"x" * size)
    assert got["body"] == b"x" * size


def test_a_request_of_which_the_kernel_takes_much_at_once_goes_on_behind_that(folder: Path) -> None:
    size = 6_000_000
    with socket.create_server(("127.0.0.1", 0)) as listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 4 * 1024 * 1024)
        except PermissionError:
            pytest.skip("this user cannot have a socket that takes much at once")
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    server = context(folder).wrap_socket(far, server_side=True, do_handshake_on_connect=False)
    greeting = gevent.spawn(server.do_handshake)
    tls = Tls({"SSL_CERT_FILE": str(folder / "ca.pem")})
    exchange = Exchange(tls.wrap(near, "localhost"), "POST", tls.would_block)
    greeting.get()
    exchange.send(b"x" * size)  # nobody reads yet
    left = size
    with gevent.Timeout(30):
        while left:
            left -= len(server.recv(min(left, 65536)))
    exchange.close()
    server.close()


def test_a_body_cut_without_goodbye_is_no_answer(folder: Path) -> None:
    def play(peer: Peer) -> None:
        peer.read_request()
        peer.send(b"HTTP/1.1 200 OK\r\n\r\nabc")
        peer.sock.shutdown(2)  # TCP ends, TLS does not

    with serving(play, tls=context(folder)) as server:
        assert trusting(folder).stream_all(server.url) == (b"abc", "error decoding response body")


def test_a_body_cut_without_goodbye_is_no_answer_on_older_pythons(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lenient(protocol: int) -> SSLContext:
        made = SSLContext(protocol)
        made.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
        return made

    def play(peer: Peer) -> None:
        peer.read_request()
        peer.send(b"HTTP/1.1 200 OK\r\n\r\nabc")
        peer.sock.shutdown(2)

    monkeypatch.setattr("execserver.http_client.tls.SSLContext", lenient)
    with serving(play, tls=context(folder)) as server:
        assert trusting(folder).stream_all(server.url) == (b"abc", "error decoding response body")


def test_a_tunnel_through_a_proxy(folder: Path) -> None:
    def tunnel(peer: Peer) -> None:
        peer.read_request()
        peer.send(b"HTTP/1.1 200 Connected\r\n\r\n")
        peer.sock = context(folder).wrap_socket(peer.sock, server_side=True)
        answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")(peer)
        peer.sock.close()

    with serving(tunnel) as proxy:
        got = trusting(folder, https_proxy=f"http://u:p@{proxy.place}").ask("https://localhost:444/x")
    assert got["body"] == b"ok"
    assert proxy.requests == [
        b"CONNECT localhost:444 HTTP/1.1\r\nHost: localhost:444\r\nProxy-Authorization: Basic dTpw\r\n\r\n",
        b"GET /x HTTP/1.1\r\naccept: */*\r\nhost: localhost:444\r\n\r\n",
    ]


# --- trust -----------------------------------------------------------------------------------------------


def test_a_named_file_is_trusted_besides_the_system(folder: Path, tmp_path: Path) -> None:
    own = make_authority()
    (tmp_path / "own.pem").write_bytes(own.pem)
    bundle = str(folder / "ca.pem")
    tls = Tls({"SSL_CERT_FILE": str(tmp_path / "own.pem")}, (bundle,))
    assert tls.trusted == 2
    both = {"CODEX_CA_CERTIFICATE": str(tmp_path / "own.pem"), "SSL_CERT_FILE": "/nowhere"}
    assert Tls(both, (bundle,)).trusted == 2


def test_the_first_bundle_found_is_the_systems(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "damaged.pem").write_text("nothing")
    bundles = (
        "/nowhere.pem",
        str(tmp_path / "damaged.pem"),
        str(folder / "ca.pem"),
        str(folder / "good.pem"),
    )
    assert Tls({}, bundles).trusted == 1


def test_a_folder_takes_the_place_of_the_bundles(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes((folder / "ca.pem").read_bytes())
    subprocess.run(["openssl", "rehash", str(tmp_path)], check=True)
    with serving(answering(OK), tls=context(folder)) as server:
        assert Caller({"SSL_CERT_DIR": str(tmp_path)}).ask(server.url)["status"] == 200


def test_without_any_authority_the_error_says_what_to_do() -> None:
    with pytest.raises(NoTrust, match="name a PEM file in SSL_CERT_FILE"):
        Tls({}, ())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot read {F}, named by SSL_CERT_FILE: No such file or directory (os error 2)"),
        (b"nothing", "{F}, named by SSL_CERT_FILE, holds no PEM certificates"),
        (b"", "{F}, named by SSL_CERT_FILE, holds no PEM certificates"),
    ],
)
def test_a_named_file_that_does_not_serve_is_named_before_anybody_is_asked(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "own.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InternalError) as caught:
        Caller({"SSL_CERT_FILE": str(path)}).ask("https://127.0.0.1:1/")
    assert caught.value.message == "http/request failed: " + reason.replace("{F}", str(path))


def test_an_empty_variable_names_no_file(folder: Path) -> None:
    assert Tls({"SSL_CERT_FILE": "", "CODEX_CA_CERTIFICATE": ""}, (str(folder / "ca.pem"),)).trusted == 1
