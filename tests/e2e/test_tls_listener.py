"""A server with TLS, from outside: content, clients' certificates, new certificates, slow peers."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from execserver import cli
from execserver.access.command_line import listen_and_entry
from execserver.client import ConnectFailed, ExecServerClient, ExecServerClientConnectOptions
from execserver.leaving import Leave
from tests.support.certificates import Authority, make_authority
from tests.support.greenlets import turns
from tests.support.server_process import OURS, ServerProcess, base_environment
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


class Stage:
    """An authority, the files of a server, and the server."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self.authority = make_authority()
        (folder / "ca.pem").write_bytes(self.authority.pem)
        self.put("both.pem", self.authority)

    def put(self, name: str, authority: Authority, *names: str) -> str:
        """Write a certificate with its key; return the path."""
        (self.folder / name).write_bytes(authority.issue(*(names or ("127.0.0.1",))))
        return str(self.folder / name)

    def serve(self, *options: str) -> ServerProcess:
        """Start a server."""
        both = str(self.folder / "both.pem")
        words = ("--tls-cert", both, "--tls-key", both, "--log-level", "info", *options)
        env = base_environment()
        started = ServerProcess(OURS, listen="wss://127.0.0.1:0", options=words, cwd=ROOT, env=env)
        return self._stack.enter_context(started)

    def connect(self, server: ServerProcess, **options: object) -> ExecServerClient:
        """Open a session."""
        trusted = {"ca_file": str(self.folder / "ca.pem"), **options}
        chosen = ExecServerClientConnectOptions(**trusted)  # type: ignore[arg-type]
        return self._stack.enter_context(ExecServerClient.connect(server.url, chosen))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A place for one test; what it started is ended."""
    with ExitStack() as stack:
        yield Stage(tmp_path, stack)
    turns()  # gevent closes a socket in the next turn of its loop


def greet(url: str, context: ssl.SSLContext) -> bytes:
    """Do a handshake; return the certificate of the server."""
    parts = urlsplit(url)
    with (
        socket.create_connection((parts.hostname or "", parts.port or 0), 20) as sock,
        context.wrap_socket(sock, server_hostname="127.0.0.1") as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


def test_much_goes_both_ways(stage: Stage) -> None:
    content = os.urandom(5_000_000)
    server = stage.serve("--insecure-listen")
    assert server.url.startswith("wss://127.0.0.1:")
    client = stage.connect(server)
    client.write_file(f"{stage.folder}/file", content)
    assert client.read_file(f"{stage.folder}/file") == content
    assert (stage.folder / "file").read_bytes() == content


def test_a_client_proves_itself_with_a_certificate(stage: Stage) -> None:
    server = stage.serve("--client-ca", str(stage.folder / "ca.pem"))
    mine = stage.put("client.pem", stage.authority, "ada.example")
    stage.connect(server, client_certificate=(mine, mine))
    wait_until(lambda: "way=tls name='ada.example'" in server.errors())
    foreign = stage.put("foreign.pem", make_authority(), "ada.example")
    for certificate in (None, (foreign, foreign)):
        with pytest.raises(ConnectFailed):
            stage.connect(server, client_certificate=certificate)


def test_a_token_is_asked_for_over_tls_too(stage: Stage) -> None:
    (stage.folder / "token").write_text("right\n")
    server = stage.serve("--ws-auth", "capability-token", "--ws-token-file", f"{stage.folder}/token")
    stage.connect(server, token="right")
    stage.connect(server, token_file=f"{stage.folder}/token")
    with pytest.raises(ConnectFailed, match="401"):
        stage.connect(server, token="wrong")


def test_sighup_reads_the_certificate_again_and_keeps_the_old_one_if_it_is_broken(stage: Stage) -> None:
    server = stage.serve()
    client = stage.connect(server)
    context = ssl.create_default_context(cafile=str(stage.folder / "ca.pem"))
    first = greet(server.url, context)
    stage.put("both.pem", stage.authority)
    os.kill(server.pid, signal.SIGHUP)
    wait_until(lambda: "the certificate was read again" in server.errors())
    second = greet(server.url, context)
    (stage.folder / "both.pem").write_text("broken")
    os.kill(server.pid, signal.SIGHUP)
    wait_until(lambda: "going on with the certificate that was there before" in server.errors())
    assert greet(server.url, context) == second != first
    assert client.process_list() == ()


def test_a_handshake_that_stalls_delays_nobody_and_ends(stage: Stage) -> None:
    server = stage.serve()
    parts = urlsplit(server.url)
    with ExitStack() as stalled:
        sockets = [
            stalled.enter_context(socket.create_connection((parts.hostname or "", parts.port or 0), 20))
            for _ in range(20)
        ]
        sockets[0].sendall(b"\x16\x03\x01")
        sockets[1].sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert sockets[1].recv(100)[:1] in (b"\x15", b"")  # an alert
        stage.connect(server)


def test_without_a_certificate_or_with_a_broken_one_nothing_starts(stage: Stage) -> None:

    broken = str(stage.folder / "broken")
    Path(broken).write_text("x")
    for options, text in [
        ([], "needs --tls-cert and --tls-key"),
        (["--tls-cert", broken], "need a certificate and its key"),
        (["--tls-cert", broken, "--tls-key", broken], "cannot use the certificate"),
    ]:
        chosen = cli.parse(["--listen", "wss://127.0.0.1:0", *options])
        with pytest.raises(Leave, match=text):
            listen_and_entry(chosen.listen, chosen.access, remote=False)
