"""A proxy that masks credentials, and a TLS server of the test's own that they may be sent to."""

from __future__ import annotations

import os
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import gevent
from gevent import socket
from gevent.ssl import SSLContext

from execserver.egress.masking import Masking
from execserver.egress.policy import EgressPolicy
from execserver.egress.providers import Auth, Provider
from execserver.services.egress.authority import Authority
from execserver.services.egress.ca_bundle import CaBundle
from execserver.services.egress.masked import Masked
from tests.support.certificates import Authority as TestAuthority
from tests.support.certificates import make_authority
from tests.support.egress_scene import HELLO, Names, Scene, Upstream, rules, scene

HOST = "api.vendor.example"
VENDOR = b"vendor_abcdefghij"
ALL = (Auth.BEARER, Auth.TOKEN, Auth.BASIC)


class MaskingScene:
    """A proxy with one credential, and the server it is for; `stand_in` is what the process has."""

    def __init__(self, here: Scene, server: Upstream, masked: Masked, stand_in: bytes, folder: Path) -> None:
        self.here = here
        self.server = server
        self.masked = masked
        self.stand_in = stand_in
        self.folder = folder
        self.url = f"https://{HOST}:{server.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the process."""
        own = {name.decode(): value.decode() for name, value in self.here.proxy.environment.items()}
        return {"PATH": os.environ["PATH"], "KEY": self.stand_in.decode()} | own

    def run(self, *argv: str, **more: str) -> subprocess.CompletedProcess[bytes]:
        """Run a program as the process would, while the proxy serves."""
        pool = gevent.get_hub().threadpool
        run = lambda: subprocess.run(  # noqa: E731
            argv, env=self.environment | more, capture_output=True, timeout=40, check=False
        )
        found = pool.apply(run)
        assert isinstance(found, subprocess.CompletedProcess)
        return found

    def context(self) -> ssl.SSLContext:
        """Return what trusts the proxy."""
        return ssl.create_default_context(cadata=self.masked.authority.pem.decode())

    def tls(self, *, socks: bytes = b"", name: str = HOST, place: str = "") -> socket.socket:
        """Return a TLS connection through the proxy, by CONNECT or by what is said to SOCKS."""
        sock = self.here.connection(socks=bool(socks))
        place = place or f"{HOST}:{self.server.port}"
        sock.sendall(socks or f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
        answer = sock.recv(4096)
        while socks and len(answer) < 12:
            answer += sock.recv(4096)
        context = SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.masked.authority.pem.decode())
        return context.wrap_socket(sock, server_hostname=name)

    def ask(self, request: bytes, sock: socket.socket | None = None) -> bytes:
        """Send a request over TLS; return its answer."""
        with sock or self.tls() as tls:
            tls.sendall(request)
            return answer_of(tls)

    def request(self, *fields: str, path: str = "/v1/x", method: str = "GET", host: str = "") -> bytes:
        """Return a request with the stand-in."""
        host = host or f"{HOST}:{self.server.port}"
        bearer = f"Authorization: Bearer {self.stand_in.decode()}"
        lines = (f"{method} {path} HTTP/1.1", f"Host: {host}", bearer, *fields, "", "")
        return "\r\n".join(lines).encode("latin-1")

    @property
    def heard(self) -> bytes:
        """What the server was sent last."""
        return self.server.received[-1]


def answer_of(tls: socket.socket) -> bytes:
    """Return an answer, whose head says how long it is."""
    data = b""
    while b"\r\n\r\n" not in data and (more := tls.recv(65536)):
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
    while len(body) < length and (more := tls.recv(65536)):
        body += more
    return head + b"\r\n\r\n" + body


class _TlsUpstream(Upstream):
    def _serve(self, sock: socket.socket) -> None:
        with suppress(OSError):  # a client that says no
            super()._serve(sock)


@contextmanager
def tls_server(authority: TestAuthority, folder: Path, answer: bytes, *names: str) -> Iterator[Upstream]:
    """Serve TLS on loopback."""
    pem = folder / "server.pem"
    pem.write_bytes(authority.issue(*names))
    context = SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with socket.socket() as plain:
        plain.bind(("127.0.0.1", 0))
        plain.listen(64)
        with context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False) as sock:
            server = _TlsUpstream(sock, answer)
            try:
                yield server
            finally:
                gevent.killall(server.greenlets)


@contextmanager
def masking_scene(
    folder: Path,
    *,
    answer: bytes = HELLO,
    auths: Sequence[Auth] = ALL,
    header: str | None = None,
    trusts: bool = True,
    names: Sequence[str] = (HOST, "elsewhere.example", "127.0.0.1"),
    policy: EgressPolicy | None = None,
) -> Iterator[MaskingScene]:
    """Serve this process with a proxy that has a credential for a server."""
    authority = make_authority()
    trusted = folder / "trusted.pem"
    trusted.write_bytes((authority if trusts else make_authority()).pem)
    places = {name.replace(".", "_"): [["127.0.0.1"]] for name in (HOST, "elsewhere.example")}
    environ = {b"SSL_CERT_FILE": os.fsencode(trusted), b"SSL_CERT_DIR": os.fsencode(folder)}
    allowed = policy or rules("**.vendor.example", "elsewhere.example", "127.0.0.1", local=True)
    with (
        tls_server(authority, folder, answer, *names) as server,
        scene(allowed, Names(**places), environ=environ) as here,
    ):
        destinations = [f"https://{host}:{server.port}/v1" for host in (HOST, "127.0.0.1")]
        provider = Provider(
            "vendor", ("KEY",), destinations, patterns=("vendor_[a-z]{10}",), auths=auths, header=header
        )
        masking = Masking(b"s" * 32, [provider])
        stand_in = masking.masked({b"KEY": VENDOR})[b"KEY"]
        own = Authority.new()
        bundle = CaBundle.new(os.fsencode(folder / "proxy"), own.pem)
        masked = Masked(masking, own, bundle, here.service)
        here.proxy.masked = masked
        yield MaskingScene(here, server, masked, stand_in, folder)
