"""A keep-alive probe that is lost on the way: the next one asks again, and the connection lives."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from execserver.eventloop.liveness import TcpInfo
from execserver.listen_url import WsListen
from execserver.listening import bind
from execserver.settings import Settings
from tests.support.waiting import wait_until

_ATTACH_FILTER, _DETACH_FILTER = 26, 27  # linux/socket.h
_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)  # linux/filter.h: return 0, that is, take nothing of a packet


@contextmanager
def deaf(sock: socket.socket) -> Iterator[None]:
    """Let the kernel drop whatever arrives for a socket, before TCP sees it: so nothing is answered."""
    program = ctypes.create_string_buffer(_DROP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))
    except PermissionError:
        pytest.skip("here only root may filter what arrives for a socket")
    yield
    sock.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)


def unanswered_probes(sock: socket.socket) -> int:
    return TcpInfo.parse(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 148)).probes


def test_one_lost_probe_does_not_end_an_idle_connection() -> None:
    """With the listener of the server and of the relay, in seconds instead of times of five."""
    idle, interval = Settings.keepalive_idle_s, Settings.keepalive_interval_s
    assert idle + interval < Settings.tcp_user_timeout_s < idle + 2 * interval
    room = (Settings.tcp_user_timeout_s - idle) / interval
    settings = Settings(keepalive_idle_s=1, keepalive_interval_s=1, tcp_user_timeout_s=1 + room)
    listening = bind(WsListen("127.0.0.1", 0), settings)
    listening.setblocking(True)
    with listening, socket.create_connection(listening.getsockname()) as client:
        accepted, _ = listening.accept()
        with accepted:
            with deaf(client):
                wait_until(lambda: unanswered_probes(accepted) == 1)
            wait_until(lambda: unanswered_probes(accepted) == 0)  # the second one is answered
            client.sendall(b"here")
            assert accepted.recv(10) == b"here"
