"""How connections arrive: what the socket itself says about the peer."""

from __future__ import annotations

import os
import socket

import pytest

from execserver.access.identity import NOBODY, Identity
from execserver.transports import arrival
from execserver.transports.arrival import NotWelcome, TcpArrival, UnixArrival, address_text, arrival_for


@pytest.mark.parametrize(
    ("address", "text"), [(("127.0.0.1", 5), "127.0.0.1:5"), (("::1", 5, 0, 0), "[::1]:5")]
)
def test_a_tcp_peer_has_an_address_and_no_identity(address: tuple[object, ...], text: str) -> None:
    with socket.socket() as sock:
        assert TcpArrival().receive(sock, address) == (sock, text, NOBODY, True)
    assert address_text(address) == text


@pytest.mark.parametrize("uid", [0, 1000])
def test_the_servers_user_and_root_may_use_its_socket(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    monkeypatch.setattr(arrival, "peer_uid", lambda _: uid)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with socket.socket(socket.AF_UNIX) as sock:
        assert UnixArrival().receive(sock, "").identity == Identity("uid", str(uid))


def test_any_other_user_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival, "peer_uid", lambda _: 1001)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(NotWelcome, match="the user 1001"):
        UnixArrival().receive(sock, "")


def test_the_socket_says_how_connections_arrive() -> None:
    with socket.socket(socket.AF_UNIX) as unix, socket.socket() as tcp:
        assert isinstance(arrival_for(unix), UnixArrival)
        assert isinstance(arrival_for(tcp), TcpArrival)
