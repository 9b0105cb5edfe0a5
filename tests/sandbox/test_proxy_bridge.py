"""The process that carries bytes from passed listening sockets to proxies of the host."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from execserver.sandbox.proxy.bridge import MAX_CONNECTIONS, Bridge, pass_listeners, start_bridge
from execserver.sandbox.proxy.routes import Endpoint
from tests.support.proc import descriptors
from tests.support.sockets import need_ipv6
from tests.support.waiting import wait_until

MIB = 1024 * 1024


@contextmanager
def serving(
    handle: Callable[[socket.socket], None], address: Endpoint = (b"127.0.0.1", 0)
) -> Iterator[Endpoint]:
    """Handle every connection to a fresh endpoint in a thread."""
    host, port = address
    if port == 0 and host.startswith(b"/"):
        server = socket.socket(socket.AF_UNIX)
        server.bind(host)
        server.listen()
        endpoint = (host, 0)
    else:
        family = socket.AF_INET6 if b":" in host else socket.AF_INET
        server = socket.create_server((host.decode(), 0), family=family)
        endpoint = (host, server.getsockname()[1])

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=handle, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def echo_to_the_end(connection: socket.socket) -> None:
    """Answer with everything that came, once the other side has ended."""
    with connection:
        data = b""
        while piece := connection.recv(65536):
            data += piece
        connection.sendall(b"got " + data)


@contextmanager
def bridged(*endpoints: Endpoint) -> Iterator[tuple[Bridge, list[int]]]:
    """Run a bridge; yields it and the ports that lead to the endpoints."""
    bridge = start_bridge(endpoints, lambda: None)
    try:
        ports = pass_listeners(bridge.channel, [0] * len(endpoints))
        bridge.close_channel()
        yield bridge, ports
    finally:
        bridge.kill()
        os.waitpid(bridge.pid, 0)


def ask(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


def asked_in_vain(port: int) -> bool:
    """Tell whether a question ended without an answer; how one notices depends on timing."""
    try:
        return ask(port, b"x") == b""
    except OSError as error:
        return error.errno in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN)


@pytest.mark.parametrize("host", [b"127.0.0.1", b"::1"])
def test_bytes_go_both_ways_and_ends_are_passed_on(host: bytes) -> None:
    if b":" in host:
        need_ipv6()
    with serving(echo_to_the_end, (host, 0)) as endpoint, bridged(endpoint) as (_, (port,)):
        assert ask(port, b"hello") == b"got hello"
        data = os.urandom(2 * MIB)
        assert ask(port, data) == b"got " + data


def test_each_port_leads_to_its_endpoint(socket_folder: str) -> None:
    path = os.fsencode(f"{socket_folder}/proxy.sock")

    def say(text: bytes) -> Callable[[socket.socket], None]:
        def handle(connection: socket.socket) -> None:
            with connection:
                connection.sendall(text)

        return handle

    with (
        serving(say(b"one")) as one,
        serving(say(b"two"), (path, 0)) as two,
        bridged(one, two) as (_, ports),
    ):
        assert [ask(port, b"") for port in ports] == [b"one", b"two"]


def test_an_endpoint_that_refuses_ends_the_connection_and_nothing_else() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # nobody listens, and nobody else gets the port
        refusing = (b"127.0.0.1", nobody.getsockname()[1])
        with serving(echo_to_the_end) as endpoint, bridged(refusing, endpoint) as (_, (refused, port)):
            assert asked_in_vain(refused)
            assert ask(port, b"still there") == b"got still there"


def test_a_slow_reader_holds_back_the_sender_and_not_the_others() -> None:
    def pour(connection: socket.socket) -> None:
        with connection:
            try:
                connection.sendall(bytes(64 * MIB))
            except OSError:
                pass

    with (
        serving(pour) as endless,
        serving(echo_to_the_end) as endpoint,
        bridged(endless, endpoint) as (bridge, (slow, port)),
        socket.create_connection(("127.0.0.1", slow), 10) as reader,
    ):
        assert reader.recv(1)
        assert ask(port, b"quick") == b"got quick"
        with open(f"/proc/{bridge.pid}/status") as status:
            resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        assert resident < 512 * 1024


def test_connections_are_bounded_and_further_ones_wait() -> None:
    with serving(echo_to_the_end) as endpoint, bridged(endpoint) as (bridge, (port,)):
        held = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(MAX_CONNECTIONS)]
        wait_until(lambda: len(descriptors(bridge.pid)) >= 2 * MAX_CONNECTIONS)
        with socket.create_connection(("127.0.0.1", port), 10) as late:
            late.sendall(b"late")
            late.shutdown(socket.SHUT_WR)
            late.settimeout(0.2)
            with pytest.raises(TimeoutError):
                late.recv(10)
            for connection in held:
                connection.close()
            late.settimeout(20)
            assert late.recv(100) == b"got late"


def test_it_keeps_nothing_else_open_and_ends_without_listeners() -> None:
    ours, theirs = socket.socketpair()
    bridge = start_bridge([(b"127.0.0.1", 1)], lambda: None)
    theirs.close()
    ours.settimeout(20)
    assert ours.recv(1) == b""  # nobody has the other end
    bridge.close_channel()
    assert os.waitpid(bridge.pid, 0)[0] == bridge.pid
    ours.close()


def test_what_ties_it_to_its_parent_is_called_first() -> None:
    bridge = start_bridge([(b"127.0.0.1", 1)], lambda: os._exit(7))
    assert os.waitstatus_to_exitcode(os.waitpid(bridge.pid, 0)[1]) == 7
    bridge.close_channel()
