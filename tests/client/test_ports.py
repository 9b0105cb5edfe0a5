"""Forwarded ports with the client and a real server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import pytest
from gevent import socket

from execserver.client import (
    ExecServerClient,
    InternalError,
    InvalidRequestError,
    TransportClosed,
    UnsupportedByServer,
)
from execserver.client.rules.port_table import MOST_DROPPING
from execserver.protocol.environment import Extensions
from execserver.protocol.ports import PortAcceptedNotification, PortAddress, PortDataNotification
from tests.client.cutting_proxy import CuttingProxy
from tests.client.fake_server import FakeServer
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

MIB = 1024 * 1024
RESTRICTED: dict[str, object] = {
    "permissions": {"type": "managed", "file_system": {"type": "unrestricted"}, "network": "restricted"},
    "windowsSandboxLevel": "disabled",
}


@contextmanager
def listener() -> Iterator[Any]:
    with socket.socket() as sock:  # that of gevent: `create_server` would make one that blocks all
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock


def everything(stream: Any) -> bytes:
    return b"".join(iter(stream.recv, b""))


def to_the_end(sock: Any) -> bytes:
    """Return what a socket receives until its peer stops."""
    return b"".join(iter(lambda: sock.recv(MIB), b""))


def test_bytes_go_both_ways_and_each_end_may_stop(remote: ExecServerClient) -> None:
    with listener() as there:
        stream = remote.ports.open("localhost", there.getsockname()[1])
        far, _ = there.accept()
        data = os.urandom(2 * MIB)

        def play() -> None:
            stream.send(data)
            stream.shutdown()

        sender = gevent.spawn(play)
        assert to_the_end(far) == data

        def reply() -> None:
            far.sendall(data)
            far.close()

        answer = gevent.spawn(reply)
        assert everything(stream) == data
        gevent.joinall([sender, answer], raise_error=True, timeout=20)
        stream.close()
        assert remote.ports.list().streams == ()


def test_who_follows_uses_up_bytes_where_they_arrive_and_is_told_of_the_rest(
    remote: ExecServerClient,
) -> None:
    used: list[bytes] = []
    changes: list[bool] = []

    def use(data: bytes) -> int:
        used.append(data)
        return 1 if len(used) < 3 else 0

    with listener() as there:
        stream = remote.ports.open("127.0.0.1", there.getsockname()[1])
        far, _ = there.accept()
        quick = stream.follow(use, lambda: changes.append(stream.log.has_bytes))
        with far:
            for number in range(1, 3):
                far.sendall(b"x")
                wait_until(lambda number=number: len(used) == number, pause=gevent.sleep)  # type: ignore[misc]
            assert changes == []
            far.sendall(b"y")
            wait_until(lambda: changes == [True], pause=gevent.sleep)
            assert stream.log.take() == b"y"
            assert quick.send(b"z")
            assert far.recv(10) == b"z"
            wait_until(lambda: quick.is_settled, pause=gevent.sleep)
        wait_until(lambda: changes == [True, False, False], pause=gevent.sleep)
        assert stream.log.take() == b""
        assert used == [b"x", b"x", b"y"]
        stream.leave()
        stream.drop()
        wait_until(lambda: remote.ports.list().streams == (), pause=gevent.sleep)


@pytest.mark.parametrize("size", [5, 16 * MIB])
def test_first_bytes_come_before_all_others(remote: ExecServerClient, size: int) -> None:
    """Of many the kernel does not take all at once."""
    first, more = os.urandom(size), os.urandom(MIB)
    with listener() as there:

        def read() -> bytes:
            with there.accept()[0] as far:
                return to_the_end(far)

        reading = gevent.spawn(read)
        stream = remote.ports.open("127.0.0.1", there.getsockname()[1], first=first)
        stream.send(more)
        stream.shutdown()
        assert reading.get(timeout=30) == first + more
        stream.close()


def test_a_reader_that_takes_nothing_stops_the_sender(remote: ExecServerClient) -> None:
    with listener() as there:
        stream = remote.ports.open("127.0.0.1", there.getsockname()[1])
        far, _ = there.accept()
        far.settimeout(20)
        sender = gevent.spawn(far.sendall, b"x" * (64 * MIB))
        wait_until(lambda: stream.arrived == MIB, 20.0, pause=gevent.sleep)
        remote.environment_info()  # the connection is not held up
        assert stream.arrived == MIB
        assert not sender.ready()
        sender.kill()
        stream.close()
        far.close()


def test_the_window_is_smaller_while_many_streams_are_open(remote: ExecServerClient) -> None:
    with listener() as there:
        streams, others = [], []
        for _ in range(65):
            streams.append(remote.ports.open("127.0.0.1", there.getsockname()[1]))
            others.append(there.accept()[0])
        assert [stream.log.window_bytes for stream in streams] == [*[MIB] * 64, MIB // 4]
        sender = gevent.spawn(others[-1].sendall, b"x" * (64 * MIB))
        wait_until(lambda: streams[-1].arrived == MIB // 4, 20.0, pause=gevent.sleep)
        remote.environment_info()
        assert streams[-1].arrived == MIB // 4
        for stream in streams[:2]:
            stream.close()
        streams.append(remote.ports.open("127.0.0.1", there.getsockname()[1]))
        others.append(there.accept()[0])
        assert streams[-1].log.window_bytes == MIB
        sender.kill()
        for stream in streams:
            stream.close()
        for other in others:
            other.close()


def test_pieces_go_ahead_of_their_answers_once_and_in_order_over_lost_connections(
    server: ServerProcess,
) -> None:
    data = os.urandom(16 * MIB)

    def with_cuts(proxy: CuttingProxy) -> Iterator[bytes]:
        for number, start in enumerate(range(0, len(data), 50_000)):
            if number % 40 == 39:
                proxy.cut()
            yield data[start : start + 50_000]

    with (
        CuttingProxy(server.url) as proxy,
        listener() as there,
        ExecServerClient.connect(proxy.url) as client,
    ):
        stream = client.ports.open("127.0.0.1", there.getsockname()[1])
        far, _ = there.accept()

        def play() -> None:
            stream.send_all(with_cuts(proxy))
            stream.send(b"the end")
            stream.shutdown()

        sender = gevent.spawn(play)
        assert to_the_end(far) == data + b"the end"
        sender.get(timeout=20)
        assert client.resumptions >= 3
        stream.close()
        far.close()


def test_a_sender_who_gives_up_leaves_no_hole(remote: ExecServerClient) -> None:
    with listener() as there:
        stream = remote.ports.open("127.0.0.1", there.getsockname()[1])
        far, _ = there.accept()
        data = os.urandom(32 * MIB)
        sender = gevent.spawn(stream.send_all, [data])
        first = far.recv(100_000)
        sender.kill()

        def finish() -> None:
            stream.send(b"the end")
            stream.shutdown()

        last = gevent.spawn(finish)
        got = first + to_the_end(far)
        last.get(timeout=20)
        assert got.endswith(b"the end")
        assert len(got) < len(data)
        assert data.startswith(got[:-7])
        stream.close()
        far.close()


def test_bytes_for_a_connection_that_was_reset_end_in_its_error(remote: ExecServerClient) -> None:
    with listener() as there:
        stream = remote.ports.open("127.0.0.1", there.getsockname()[1])
        far, _ = there.accept()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        far.close()
        with pytest.raises((TransportClosed, InvalidRequestError), match=r"reset|unknown port|pipe"):
            stream.send_all(iter(lambda: b"x" * 1000, b""))
        stream.close()


def test_what_connects_to_a_listener_is_passed_on(remote: ExecServerClient) -> None:
    listening = remote.ports.listen("127.0.0.1")
    assert listening.address.port
    with socket.create_connection(("127.0.0.1", listening.address.port)) as near:
        near.sendall(b"hello")
        stream = listening.accept(20)
        assert stream is not None
        assert stream.recv() == b"hello"
        stream.send(b"there")
        assert near.recv(10) == b"there"
        (entry,) = [one for one in remote.ports.list().listening if one.port == listening.address.port]
        assert (entry.host, entry.uid) == ("127.0.0.1", os.getuid())
        listening.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", listening.address.port))
        stream.close()
        assert near.recv(10) == b""


def test_a_stream_goes_on_over_a_lost_connection(server: ServerProcess) -> None:
    with (
        CuttingProxy(server.url) as proxy,
        listener() as there,
        ExecServerClient.connect(proxy.url) as client,
    ):
        stream = client.ports.open("127.0.0.1", there.getsockname()[1])
        far, _ = there.accept()
        # So much that after each cut more is to come than the window lets the server have sent before it.
        data = os.urandom(5 * MIB)

        def play() -> None:
            for start in range(0, len(data), 16384):
                far.sendall(data[start : start + 16384])
            far.shutdown(socket.SHUT_WR)

        sender = gevent.spawn(play)
        got = b""
        while len(got) < len(data):
            got += stream.recv()
            if client.resumptions < 3 and len(got) > client.resumptions * MIB:
                proxy.cut()
        assert got == data
        assert client.resumptions
        stream.send(b"still here")
        assert far.recv(100) == b"still here"
        sender.join(20)
        far.close()
        stream.close()


def test_refusals_say_why(remote: ExecServerClient, server: ServerProcess) -> None:
    with pytest.raises(InvalidRequestError, match=r"loopback addresses only \(--allow-forward loopback\)"):
        remote.ports.open("192.0.2.1", 80)
    with pytest.raises(InvalidRequestError, match="loopback addresses only"):
        remote.ports.listen("0.0.0.0", 0)
    with pytest.raises(InvalidRequestError, match="sandbox does not allow the network"):
        remote.ports.open("127.0.0.1", 80, sandbox=RESTRICTED)
    own = int(server.url.rpartition(":")[2])
    for host in ("127.0.0.1", "localhost", "127.9.9.9", "::ffff:127.0.0.1"):
        with pytest.raises(InvalidRequestError, match="is this server's own"):
            remote.ports.open(host, own)
    with listener() as there:
        port = there.getsockname()[1]
    with pytest.raises(InternalError, match=r"Connection refused \(os error 111\)"):
        remote.ports.open("127.0.0.1", port)
    with pytest.raises(InternalError, match=r"cannot resolve no\.such\.name\.invalid"):
        remote.ports.open("no.such.name.invalid", 1)


def test_a_reset_is_told(remote: ExecServerClient) -> None:
    with listener() as there:
        stream = remote.ports.open("127.0.0.1", there.getsockname()[1])
        far, _ = there.accept()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        far.close()
        with pytest.raises(TransportClosed, match="reset"):
            everything(stream)


def test_a_server_that_does_not_forward(remote: ExecServerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(remote._session), "extensions", Extensions())
    with pytest.raises(UnsupportedByServer):
        remote.ports.open("127.0.0.1", 1)


def test_a_server_that_sends_beyond_its_window_loses_the_stream(remote: ExecServerClient) -> None:
    with listener() as there:
        stream = remote.ports.open("127.0.0.1", there.getsockname()[1])
        piece = b"x" * MIB
        for number in range(5):
            note = PortDataNotification(port_id=stream.port_id, offset=number * MIB, chunk=piece, eof=False)
            remote.ports.on_data(note)
        assert stream.arrived == 4 * MIB
        assert b"".join(stream.recv() for _ in range(4)) == piece * 4
        with pytest.raises(TransportClosed, match="sent more than its window allows"):
            stream.recv()
        wait_until(lambda: remote.ports.list().streams == (), 20.0, pause=gevent.sleep)


def test_connections_that_nobody_takes_are_closed_beyond_the_limit(remote: ExecServerClient) -> None:
    entry = remote.ports.listen("127.0.0.1")
    for number in range(300):
        peer = PortAddress(host="127.0.0.1", port=1)
        remote.ports.on_accepted(
            PortAcceptedNotification(
                listen_id=entry.port_id, port_id=f"{entry.port_id}/{number}", peer=peer, window_bytes=1
            )
        )
    assert entry.accepted.qsize() == 256
    entry.close()


@pytest.fixture
def forwards(fake: FakeServer, client: ExecServerClient, monkeypatch: pytest.MonkeyPatch) -> ExecServerClient:
    """A client whose server forwards, and answers nothing about what it has forwarded."""
    monkeypatch.setattr(type(client._session), "extensions", Extensions(port_forward="any"))
    peer = {"host": "127.0.0.1", "port": 7}
    fake.answers["port/listen"] = lambda params: {"portId": params["portId"], "address": peer}
    fake.answers["port/open"] = lambda params: fake.answers["port/listen"](params) | {"windowBytes": 1}  # type: ignore[operator]
    return client


def test_a_server_that_passes_on_more_than_it_may_is_given_up(
    fake: FakeServer, forwards: ExecServerClient
) -> None:
    forwards.ports.listen("127.0.0.1")
    peer, carrier = {"host": "127.0.0.1", "port": 7}, fake.current
    for number in range(MOST_DROPPING + 1):
        assert not carrier.closed
        carrier.push("port/accepted", listenId="none", portId=f"{number}", peer=peer, windowBytes=1)
    wait_until(lambda: carrier.closed, pause=gevent.sleep)


def test_what_has_come_is_told_by_one_request_at_a_time(fake: FakeServer, forwards: ExecServerClient) -> None:
    stream = forwards.ports.open("127.0.0.1", 7)
    for offset in range(200):
        chunk = {"offset": offset, "chunk": "eA==", "eof": False}
        fake.current.push("port/bytes", portId=stream.port_id, **chunk)
        assert stream.recv() == b"x"
    told = [one for one in fake.requests if one.method == "port/ack"]
    assert [one.params["received"] for one in told] == [1]
    fake.answers["port/ack"] = lambda _: {}
    fake.current.reply(told[0].call_id, {})
    wait_until(lambda: fake.requests[-1].params["received"] == 200, pause=gevent.sleep)
