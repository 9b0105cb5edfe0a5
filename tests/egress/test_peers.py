"""Whose connection to a proxy on the host's loopback is served."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from execserver.egress.addresses import Address
from execserver.services.egress import peers
from execserver.services.egress.peers import Peers
from tests.support.egress_scene import get, rules, scene, upstream


@pytest.fixture
def asked() -> Iterator[Peers]:
    made = Peers()
    yield made
    made.close()


@pytest.mark.parametrize("with_netlink", [True, False])
def test_a_socket_that_was_closed_is_nobody_s(
    asked: Peers, with_netlink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_netlink:
        monkeypatch.setattr(Peers, "_ask", lambda self, client, port: peers._from_proc(client, port))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            place = client.getsockname()
            assert asked.may_use(place, port, 0)
            client.shutdown(socket.SHUT_WR)
            assert asked.may_use(place, port, 0)  # it only has nothing more to say
        assert not asked.may_use(place, port, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_who_is_gone_at_once_is_not_served() -> None:
    program = (
        "import os, socket, sys; os.setgid(65534); os.setuid(65534)\n"
        "sock = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "sock.sendall(sys.argv[2].encode()); sock.close()\n"
    )
    with scene(rules("127.0.0.1")) as here, upstream() as server:
        request = get(server.place, method="POST").decode()
        # It is gone before anybody looks: the event loop, which would accept, stands still meanwhile.
        subprocess.run([sys.executable, "-c", program, str(here.proxy.http_port), request], check=True)
        assert here.status(get(server.place)) == 200  # connections are accepted in their order
        assert len(server.received) == 1
        assert here.reasons == ["allow"]


def test_the_log_has_one_line_about_strangers(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Peers, "may_use", lambda self, *whom: False)
    with caplog.at_level("INFO"), scene(rules("*")) as here:
        for _ in range(5):
            assert here.say(b"x") == b""
    assert [record.getMessage() for record in caplog.records] == [
        f"a connection to the proxy of process {os.getpid()} was not its own"
    ]


def test_a_second_end_gives_no_port_of_another_proxy_away() -> None:
    with scene(rules("*")) as here:
        port = here.proxy.http_port
        here.proxy.close()
        here.service.own_ports.add(port)  # as if the next proxy had got it
        here.proxy.close()
        assert here.service.own_ports.leads_to_us([Address(bytes((127, 0, 0, 1)))], port)
