"""What a process could try to have a real credential sent elsewhere, or to hold up the others with."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import gevent
import pytest
from gevent import socket
from gevent.ssl import SSLContext

from execserver.eventloop.ends import of_gevent
from execserver.services.egress.authority import Authority
from execserver.services.egress.ca_bundle import CaBundle
from execserver.services.egress.server_tls import ServerTls
from execserver.services.egress.streams import Incoming
from tests.support.masking_scene import HOST, VENDOR, MaskingScene, answer_of, masking_scene


def opened(here: MaskingScene, name: str | None, trusted: bytes) -> socket.socket:
    """Return TLS in a tunnel to the provider, for another name or for none."""
    sock = here.here.connection()
    place = f"{HOST}:{here.server.port}"
    sock.sendall(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
    assert b" 200 " in sock.recv(4096)
    context = SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=trusted.decode())
    context.check_hostname = name is not None
    return context.wrap_socket(sock, server_hostname=name)


def test_tls_for_another_allowed_host_in_a_tunnel_to_the_provider_takes_no_value(tmp_path: Path) -> None:
    with masking_scene(tmp_path) as here:
        trusted = (tmp_path / "trusted.pem").read_bytes()
        assert b"200 OK" in here.ask(here.request(), opened(here, "elsewhere.example", trusted))
        assert b"Bearer " + here.stand_in in here.heard
        assert VENDOR not in here.heard


def test_tls_for_a_host_that_is_not_allowed_ends_in_a_tunnel_to_the_provider_too(tmp_path: Path) -> None:
    with masking_scene(tmp_path) as here:
        with pytest.raises(OSError):
            opened(here, "third.example", here.masked.authority.pem)
        assert b"".join(here.server.received) == b""


def test_tls_without_a_name_is_for_the_provider(tmp_path: Path) -> None:
    with masking_scene(tmp_path) as here:
        assert b"200 OK" in here.ask(here.request(), opened(here, None, here.masked.authority.pem))
        assert b"Bearer " + VENDOR in here.heard


@pytest.mark.parametrize("method", ["TRACE", "trace", "TRACK"])
def test_a_request_that_is_echoed_gets_no_value(method: str, tmp_path: Path) -> None:
    with masking_scene(tmp_path) as here:
        assert b"200 OK" in here.ask(here.request(method=method))
        assert b"Bearer " + here.stand_in in here.heard
        assert VENDOR not in here.heard


def test_a_later_request_of_a_connection_cannot_name_another_host(tmp_path: Path) -> None:
    with masking_scene(tmp_path) as here, here.tls() as tls:
        tls.sendall(here.request() + here.request(host="elsewhere.example"))
        assert answer_of(tls).endswith(b"\r\n\r\nhi")
        assert answer_of(tls).startswith(b"HTTP/1.1 400 Bad Request")
        assert tls.recv(1) == b""
        assert len(here.server.received) == 1


def test_a_request_may_come_in_records_of_one_byte(tmp_path: Path) -> None:
    with masking_scene(tmp_path) as here, here.tls() as tls:
        for byte in here.request(f"X-Fill: {'x' * 3000}"):
            tls.send(bytes((byte,)))
        assert answer_of(tls).endswith(b"\r\n\r\nhi")
        assert b"Bearer " + VENDOR in here.heard


@contextmanager
def agreed() -> Iterator[tuple[ssl.SSLObject, Callable[..., None], ServerTls]]:
    """Yield a client, what sends its records (and bytes that are none), and the server's side of its TLS."""
    authority = Authority.new()
    client = ssl.create_default_context(cadata=authority.pem.decode())
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client.wrap_bio(into, out, server_hostname=HOST)
    one, far = socket.socketpair()
    with of_gevent(one) as near, far:
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        server = ServerTls(Incoming(near, out.read()), authority.context(HOST))
        handshake = gevent.spawn(server.handshake)
        into.write(far.recv(65536))
        tls.do_handshake()
        far.sendall(out.read())
        handshake.get()
        yield tls, lambda more=b"": far.sendall(out.read() + more), server


def test_records_of_one_byte_are_read_together() -> None:
    with agreed() as (tls, send, server):
        for _ in range(500):
            tls.write(b"x")
        send()
        assert server.recv(300) == b"x" * 300
        assert server.recv(300) == b"x" * 200
        tls.write(b"last")
        with pytest.raises(ssl.SSLWantReadError):
            tls.unwrap()
        send()
        assert [server.recv(300) for _ in range(3)] == [b"last", b"", b""]


def test_what_is_no_tls_breaks_the_connection_once_what_came_before_was_read() -> None:
    with agreed() as (tls, send, server):
        tls.write(b"good")
        send(b"\x17\x03\x03\x00\x20" + b"?" * 32)
        assert server.recv(300) == b"good"
        for _ in range(2):
            with pytest.raises(ssl.SSLError):
                server.recv(300)


def test_a_program_that_trusts_no_proxy_cannot_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with masking_scene(tmp_path) as here:
        for _ in range(3):
            with pytest.raises(ssl.SSLError):
                opened(here, HOST, (tmp_path / "trusted.pem").read_bytes())
        here.ask(here.request())
    told = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(told) == 1
    assert "does not trust its proxy as api.vendor.example" in told[0].getMessage()


def test_everybody_may_read_the_certificates_whatever_the_mask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        bundle = CaBundle.new(os.fsencode(tmp_path / "proxy"), b"pem")
    finally:
        os.umask(before)
    assert Path(os.fsdecode(bundle.path)).stat().st_mode & 0o777 == 0o644
    bundle.close()
