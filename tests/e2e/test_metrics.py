"""`--metrics` and `--pass-trace` of a real server, over WebSocket and stdio."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys

import pytest

from tests.support.running import outcome, run, start_params
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def free_address() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


def asked(
    address: str, path: str = "/metrics", method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def figure(address: str, name: str) -> float:
    for line in asked(address)[1].splitlines():
        if line.startswith(f"{name} "):
            return float(line.rpartition(" ")[2])
    return 0.0


def test_the_page_follows_what_happens() -> None:
    address = free_address()
    with ServerProcess(options=("--metrics", address)) as server, server.connect() as peer:
        peer.open_session()
        run(peer, "p", "exit 3")
        assert figure(address, "exec_server_connections_active") == 1
        assert figure(address, 'exec_server_requests_total{method="process/start",result="success"}') == 1
        assert figure(address, 'exec_server_processes_finished_total{result="error",cause="exited"}') == 1
        peer.close()
        wait_until(lambda: figure(address, "exec_server_connections_active") == 0, 20)


def test_a_server_on_stdio_has_the_page_too() -> None:
    address = free_address()
    with ServerProcess(listen="stdio", options=("--metrics", address)):
        wait_until(lambda: _answers(address), 20)
        assert asked(address)[0] == 200


def _answers(address: str) -> bool:
    try:
        return asked(address)[0] == 200
    except OSError:
        return False


def test_only_this_machine_is_answered_under_its_own_name() -> None:
    address = free_address()
    with ServerProcess(options=("--metrics", address)):
        assert asked(address, headers={"Host": "example.org"})[0] == 403
        assert asked(address, headers={"X-Forwarded-For": "192.0.2.1"})[0] == 403
        assert asked(address, headers={"Origin": "http://localhost"})[0] == 403
        assert asked(address, "/")[0] == 404
        assert asked(address, method="POST")[0] == 405
        assert asked(address, method="HEAD") == (200, "")
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), 20) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\n\n")
            assert sock.recv(100) == b""


@pytest.mark.parametrize("address", ["0.0.0.0:9464", "192.0.2.1:9464", "[::]:9464"])
def test_an_address_that_others_reach_is_refused_with_the_cure(address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "execserver", "--metrics", address],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "use an address of loopback, such as 127.0.0.1:9464" in done.stderr


@pytest.mark.parametrize("address", ["", "9464", "localhost:1", "127.0.0.1", "127.0.0.1:x"])
def test_a_wrong_address_is_told(address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "execserver", f"--metrics={address}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert f"invalid value '{address}' for '--metrics <IP:PORT>'" in done.stderr


def test_an_address_in_use_leaves_nothing_running() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        done = subprocess.run(
            [sys.executable, "-m", "execserver", "--metrics", f"127.0.0.1:{sock.getsockname()[1]}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert "Address in use" in done.stderr


@pytest.mark.parametrize(("options", "seen"), [((), b""), (("--pass-trace",), PARENT.encode())])
def test_a_process_goes_on_with_the_trace_if_the_server_is_told_to(
    options: tuple[str, ...], seen: bytes
) -> None:
    with ServerProcess(options=options) as server, server.connect() as peer:
        peer.open_session()
        params = start_params("p", 'printf %s "$TRACEPARENT"')
        peer.send({"id": 70, "method": "process/start", "params": params, "trace": {"traceparent": PARENT}})
        assert "result" in peer.take({"id": 70})
        assert outcome(peer, "p").stdout == seen
