"""The carried OpenSSL trusts what the machine trusts, although it was built on another one."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.certificates import Authority, make_authority
from tests.support.one_file import Box, new_mounts
from tests.support.peer import RemoteError
from tests.support.server_process import Flavour, ServerProcess

pytestmark = pytest.mark.unpacked

BUNDLES = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"]
# An /etc of the server's own, where one bundle lies at the place one kind of system has it.
START = """
mount -t tmpfs none /mnt
cp /etc/passwd /etc/hosts /mnt
if [ -n "$2" ]; then
    bundle=/mnt/${2#/etc/}
    mkdir -p "${bundle%/*}"
    cp "$1" "$bundle"
fi
mount --bind /mnt /etc
exec "$3" --listen ws://127.0.0.1:0
"""


@pytest.fixture
def authority() -> Authority:
    """An authority that is known where the test puts its certificate."""
    return make_authority()


@contextmanager
def web_server(authority: Authority, folder: Path) -> Iterator[str]:
    """Serve one HTTPS request with status 204; the value is the URL."""
    (folder / "server.pem").write_bytes(authority.issue("localhost"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)

    def answer() -> None:
        connection, _ = listener.accept()
        connection.settimeout(20)
        try:
            with context.wrap_socket(connection, server_side=True) as stream:
                stream.recv(65_536)
                stream.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        except OSError:
            connection.close()  # a client that does not trust us has gone

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield f"https://localhost:{listener.getsockname()[1]}/"
    finally:
        thread.join(20)
        listener.close()


def serve(box: Box, certificates: Path, bundle: str, **variables: str) -> ServerProcess:
    words = (*new_mounts(), "sh", "-euc", START, "sh", str(certificates), bundle, str(box.program))
    return ServerProcess(Flavour("ours", words, 0), env={**box.variables, **variables})


@pytest.mark.parametrize("bundle", BUNDLES)
def test_the_machines_roots_are_trusted(
    bundle: str, authority: Authority, one_file: Box, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    with (
        web_server(authority, tmp_path) as url,
        serve(one_file, tmp_path / "ca.pem", bundle) as server,
        server.connect() as peer,
    ):
        peer.open_session()
        reply = peer.call(
            "http/request", {"requestId": "r", "method": "GET", "url": url, "timeoutMs": 20_000}
        )
        assert reply["status"] == 204


@pytest.mark.parametrize("named", [True, False])
def test_without_a_bundle_a_file_can_be_named(
    named: bool, authority: Authority, one_file: Box, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    variables = {"SSL_CERT_FILE": str(tmp_path / "ca.pem")} if named else {}
    with (
        web_server(authority, tmp_path) as url,
        serve(one_file, tmp_path / "ca.pem", "", **variables) as server,
        server.connect() as peer,
    ):
        peer.open_session()
        request = {"requestId": "r", "method": "GET", "url": url, "timeoutMs": 20_000}
        if named:
            assert peer.call("http/request", request)["status"] == 204
            return
        with pytest.raises(RemoteError, match="name a PEM file in SSL_CERT_FILE"):
            peer.call("http/request", request)
        socket.create_connection(("127.0.0.1", int(url.split(":")[2].rstrip("/")))).close()
