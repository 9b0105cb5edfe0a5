"""Ways out of a managed network: a network of the sandbox's own in which nothing but a proxy's port answers.

The proxy is a thread of the test that accepts on the socket which the sandbox passed to it, as the server
does; beside it there are sockets of the host that must hear nothing.
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from execserver.sandbox.backends import bwrap
from execserver.sandbox.plan import FILTER_PROXY_ROUTED, NETWORK_PROXY, ROOT_HOST, SandboxPlan
from execserver.sandbox.plan_record import encode_plan
from execserver.sandbox.proxy.routes import HTTP_PORT, SOCKS_PORT
from execserver.services.launch.passed_listeners import PassedListeners
from execserver.zygote.confinement import BUBBLEWRAP, Confinement
from execserver.zygote.records import SpawnRequest
from tests.support.roots import ENV, Outcome, give, in_child, plan
from tests.support.ways import PRELUDE, WAYS, Way, bubblewrap_for, python_for, require, start_request

PROXIED = plan(network=NETWORK_PROXY, syscall_filter=FILTER_PROXY_ROUTED)
PLAYED = ("native-root", "native-user", "root-without-userns-limit", "bubblewrap-user")
PROXIES = (
    b"http_proxy=http://127.0.0.1:%d" % HTTP_PORT,
    b"all_proxy=socks5h://127.0.0.1:%d" % SOCKS_PORT,
)


class Proxy:
    """Takes what a sandbox passed, and answers each connection with the port that it came to."""

    def __init__(self) -> None:
        self.passed = PassedListeners()
        self.listeners: dict[int, socket.socket] = {}
        self.ports: list[int] = []
        self._ended, self._end = os.pipe()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        ready: list[Any] = [self.passed._ours, self._ended]
        while self._ended not in (found := select.select(ready, (), ())[0]):
            if not self.listeners:
                self.listeners = self.passed.take()
                self.ports = sorted(self.listeners)
                ready = [*self.listeners.values(), self._ended]
                continue
            for listener in found:
                connection, _ = listener.accept()
                connection.sendall(b"%d" % listener.getsockname()[1])
                connection.close()

    def close(self) -> None:
        os.write(self._end, b"x")
        self._thread.join()
        for listener in self.listeners.values():
            listener.close()
        self.passed.close()
        os.close(self._end)
        os.close(self._ended)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    yield made
    made.close()


@contextmanager
def host_socket(kind: int) -> Iterator[socket.socket]:
    """A socket on the host's loopback that must hear nothing."""
    with socket.socket(socket.AF_INET, kind) as made:
        made.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            made.listen()
        made.setblocking(False)
        yield made
        with pytest.raises(BlockingIOError):
            made.accept() if kind == socket.SOCK_STREAM else made.recv(1)


@pytest.fixture(params=[way for way in WAYS if way.name in PLAYED], ids=str)
def managed(request: pytest.FixtureRequest) -> Way:
    """A way that routes a managed network."""
    chosen: Way = request.param
    require(chosen)
    if chosen.back_end == BUBBLEWRAP and not bubblewrap_for(chosen).joinable:
        pytest.skip("this way's bubblewrap makes networks that its user cannot enter")
    return chosen


def run_behind(
    proxy: Proxy, way: Way, argv: list[str], env: Sequence[bytes] = (), view: SandboxPlan = PROXIED
) -> Outcome:
    """Run a program whose network is that of the proxy."""
    detail = bwrap.encode(bubblewrap_for(way)) if way.back_end == BUBBLEWRAP else b""
    request = SpawnRequest(
        1,
        [os.fsencode(word) for word in argv],
        [*ENV, *PROXIES, *env],
        b"/",
        confinement=Confinement(way.back_end, encode_plan(view), detail),
        listens=True,
    )
    return in_child(lambda: start_request(way, request, [1, 2, proxy.passed.fd]))


def attack(proxy: Proxy, way: Way, code: str) -> Any:
    text = f"{PRELUDE}\n{CONNECTING}\n{code}\nprint(json.dumps(result))"
    done = run_behind(proxy, way, [python_for(way.user), "-I", "-S", "-c", text])
    assert done.status == 0, done
    return json.loads(done.out)


CONNECTING = f"""
PORT, SOCKS = {HTTP_PORT}, {SOCKS_PORT}
import socket as s
def connect(family, kind, address, protocol=0):
    made = s.socket(family, kind, protocol)
    made.settimeout(5)
    made.connect(address)
    made.send(b"x")
    return made.recv(100).decode() if kind == s.SOCK_STREAM else "sent"
def bind(address, *options):
    made = s.socket(s.AF_INET6 if ":" in address[0] else s.AF_INET, s.SOCK_STREAM)
    for option in options:
        made.setsockopt(s.SOL_SOCKET, option, 1)
    made.bind(address)
    made.listen()
    return "bound"
"""


def test_only_the_ports_of_the_proxy_answer(managed: Way, proxy: Proxy) -> None:
    with host_socket(socket.SOCK_STREAM) as tcp, host_socket(socket.SOCK_DGRAM) as udp:
        found = attack(
            proxy,
            managed,
            f"tcp, udp = {tcp.getsockname()[1]}, {udp.getsockname()[1]}\n"
            """
own = os.environ.copy()
result = outcomes({
    "proxy": (connect, s.AF_INET, s.SOCK_STREAM, ("127.0.0.1", PORT)),
    "socks": (connect, s.AF_INET, s.SOCK_STREAM, ("127.0.0.1", SOCKS)),
    "mapped": (connect, s.AF_INET6, s.SOCK_STREAM, ("::ffff:127.0.0.1", PORT)),
    "host": (connect, s.AF_INET, s.SOCK_STREAM, ("127.0.0.1", tcp)),
    "other loopback": (connect, s.AF_INET, s.SOCK_STREAM, ("127.0.0.2", PORT)),
    "outside": (connect, s.AF_INET, s.SOCK_STREAM, ("192.0.2.1", 80)),
    "outside, proxy's port": (connect, s.AF_INET, s.SOCK_STREAM, ("192.0.2.1", PORT)),
    "metadata": (connect, s.AF_INET, s.SOCK_STREAM, ("169.254.169.254", 80)),
    "udp outside": (connect, s.AF_INET, s.SOCK_DGRAM, ("192.0.2.1", 53)),
    "udp of the host": (connect, s.AF_INET, s.SOCK_DGRAM, ("127.0.0.1", udp)),
    "unix": (s.socket, s.AF_UNIX),
    "netlink": (s.socket, s.AF_NETLINK, s.SOCK_RAW, 0),
    "packet": (s.socket, s.AF_PACKET, s.SOCK_RAW, 0),
    "vsock": (s.socket, 40, s.SOCK_STREAM, 0),
    "raw": (s.socket, s.AF_INET, s.SOCK_RAW, s.IPPROTO_ICMP),
    "io_uring": (lambda: syscall(425, 8, ctypes.create_string_buffer(120)),),
    "descriptors": (lambda: sorted(map(int, os.listdir("/proc/self/fd")))[:-1],),
})
""",
        )
    assert found == {
        "proxy": str(HTTP_PORT),
        "socks": str(SOCKS_PORT),
        "mapped": str(HTTP_PORT),
        "host": "ECONNREFUSED",
        "other loopback": "ECONNREFUSED",
        "outside": "ENETUNREACH",
        "outside, proxy's port": "ENETUNREACH",
        "metadata": "ENETUNREACH",
        # Datagrams to loopback stay in the sandbox's own.
        "udp outside": "ENETUNREACH",
        "udp of the host": "sent",
        "unix": "EPERM",
        "netlink": "EPERM",
        "packet": "EPERM",
        "vsock": "EPERM",
        "raw": "EPERM",
        "io_uring": "EPERM",
        "descriptors": "[0, 1, 2]",
    }


def test_the_ports_can_neither_be_taken_nor_the_network_changed(managed: Way, proxy: Proxy) -> None:
    found = attack(
        proxy,
        managed,
        """
import fcntl
reuse = (s.SO_REUSEADDR, s.SO_REUSEPORT)
def interface(request, content):
    one = s.socket(s.AF_INET, s.SOCK_DGRAM)
    return fcntl.ioctl(one, request, struct.pack("16s24s", b"lo", content))
def another_network():
    if os.fork() == 0:
        status = 1
        try:
            done = libc.unshare(0x10000000 | 0x40000000)
            status = 2 if done else 3
            connect(s.AF_INET, s.SOCK_STREAM, ("127.0.0.1", PORT))
            status = 0 if status == 3 else status
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.wait()[1])
result = outcomes({
    "bind": (bind, ("127.0.0.1", PORT)),
    "reuse": (bind, ("127.0.0.1", PORT), *reuse),
    "any": (bind, ("0.0.0.0", PORT), *reuse),
    "six": (bind, ("::", PORT), *reuse),
    "own": (bind, ("127.0.0.1", 8080)),
    "address": (interface, 0x8916, struct.pack("HH4s", 2, 0, b"\\x0a\\0\\0\\1")),
    "down": (interface, 0x8914, struct.pack("H", 0)),
    "rename": (interface, 0x8923, b"other"),
    "join": (lambda: syscall(308, os.open("/proc/self/ns/net", os.O_RDONLY), 0x40000000),),
})
result["still"] = tried(connect, s.AF_INET, s.SOCK_STREAM, ("127.0.0.1", PORT))
result["another network"] = another_network()
""",
    )
    elsewhere = found.pop("another network")
    assert elsewhere in (1, 2, 3), "a network made inside reached the proxy"
    assert found == {
        "bind": "EADDRINUSE",
        "reuse": "EADDRINUSE",
        "any": "EADDRINUSE",
        "six": "EADDRINUSE",
        "own": "bound",
        "address": "EPERM",
        "down": "EPERM",
        "rename": "EPERM",
        "join": "EPERM",
        "still": str(HTTP_PORT),
    }


def test_nobody_outside_reaches_the_port(managed: Way, proxy: Proxy, tmp_path: Path) -> None:
    released = tmp_path / "released"
    os.mkfifo(released)
    released.chmod(0o666)
    give(tmp_path, managed.user)
    seen: list[int] = []

    def knock() -> None:
        # The FIFO opens when the command runs.
        with open(released, "w"), socket.socket() as knocking:
            seen.append(knocking.connect_ex(("127.0.0.1", HTTP_PORT)))

    knocking = threading.Thread(target=knock)
    knocking.start()
    done = run_behind(proxy, managed, ["/bin/cat", str(released)])
    if done.status:  # it never opened the FIFO
        with open(released):
            pass
    knocking.join()
    assert (done.status, seen, proxy.ports) == (0, [111], [HTTP_PORT, SOCKS_PORT])


def test_ports_of_the_hosts_loopback_that_a_client_names_lead_nowhere(managed: Way, proxy: Proxy) -> None:
    with host_socket(socket.SOCK_STREAM) as tcp:
        port = tcp.getsockname()[1]
        script = f"(: < /dev/tcp/127.0.0.1/{port}) 2> /dev/null || echo refused"
        own = b"Pip_Proxy=http://127.0.0.1:%d" % port
        done = run_behind(proxy, managed, ["/bin/bash", "-c", script], [own])
    assert (done.out, proxy.ports) == ("refused\n", [HTTP_PORT, SOCKS_PORT]), done


def test_files_are_the_hosts_where_only_the_network_is_managed(
    managed: Way, proxy: Proxy, tmp_path: Path
) -> None:
    give(tmp_path, managed.user)
    view = plan(root=ROOT_HOST, network=NETWORK_PROXY, syscall_filter=FILTER_PROXY_ROUTED)
    script = (
        f"exec 3<>/dev/tcp/127.0.0.1/{HTTP_PORT}; cat <&3 > {tmp_path}/word;"
        "(: < /dev/tcp/192.0.2.1/80) 2>&1 || test -c /dev/null"
    )
    done = run_behind(proxy, managed, ["/bin/bash", "-c", script], view=view)
    assert (done.status, (tmp_path / "word").read_text()) == (0, str(HTTP_PORT)), done
    assert "unreachable" in done.out


def test_without_listening_sockets_taken_nothing_is_left_open() -> None:
    passed = PassedListeners()
    assert passed.take() == {}
    passed.close()
