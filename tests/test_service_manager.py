"""What a service manager is told, over a real socket of its kind."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.service_manager import ALIVE, READY, STOPPING, ServiceManager
from tests.support.notify_socket import notify_socket
from tests.support.server_process import ServerProcess, base_environment


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with notify_socket(tmp_path) as sock:
        yield sock


def test_a_server_says_when_it_serves_that_it_lives_and_when_it_ends(manager: socket.socket) -> None:
    variables = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "40000"}
    with ServerProcess(env={**base_environment(), **variables}) as server:
        assert manager.recv(1000).decode() == READY
        assert manager.recv(1000).decode() == ALIVE
        server.signal(signal.SIGTERM)
        while (said := manager.recv(1000).decode()) == ALIVE:
            pass
        assert said == STOPPING
        assert server.wait() == 0


def test_an_abstract_socket_is_told_and_a_reload_has_its_time() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("")  # the kernel gives it an abstract name
        sock.settimeout(20)
        name = sock.getsockname()
        ServiceManager({"NOTIFY_SOCKET": f"@{name[1:].decode()}"}).reloading()
        kind, when = sock.recv(1000).decode().split("\n")
    assert kind == "RELOADING=1"
    assert int(when.removeprefix("MONOTONIC_USEC=")) > 0


@pytest.mark.parametrize("name", ["", "relative", "/nowhere/at/all"])
def test_without_a_manager_nothing_is_sent(name: str) -> None:
    ServiceManager({"NOTIFY_SOCKET": name}).tell(READY)


def test_a_manager_that_does_not_read_is_not_waited_for(manager: socket.socket) -> None:
    told = ServiceManager({"NOTIFY_SOCKET": manager.getsockname()})
    for _ in range(5000):
        told.tell(READY)


def test_signs_of_life_are_for_the_process_that_is_asked(manager: socket.socket) -> None:
    asked = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "3000000"}
    assert ServiceManager(asked).watchdog_s == 1.5
    assert ServiceManager({**asked, "WATCHDOG_PID": str(os.getpid())}).watchdog_s == 1.5
    assert ServiceManager({**asked, "WATCHDOG_PID": "1"}).watchdog_s == 0
    assert ServiceManager({**asked, "WATCHDOG_USEC": "soon"}).watchdog_s == 0
