"""Every way out over a socket, io_uring, and calls that a filter might not recognise."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.sandbox.plan import FILTER_OPEN, NETWORK_HOST
from execserver.zygote.confinement import LANDLOCK
from tests.sandbox.attacks.ground import Ground
from tests.support.roots import give
from tests.support.ways import Way

REFUSED = {"EPERM", "EACCES", "ENETUNREACH", "ECONNREFUSED", "EAFNOSUPPORT", "ENOENT", "ENOSYS", "EINVAL"}
REFUSED |= {"EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "EOPNOTSUPP", "ENOPROTOOPT"}


class Listeners:
    """Sockets of the host that must hear nothing."""

    def __init__(self, folder: Path, user: int) -> None:
        folder.mkdir()
        self.name = f"\0execserver-test-{os.getpid()}"
        unix, inet = socket.AF_UNIX, socket.AF_INET
        self.tcp = self._bound(inet, socket.SOCK_STREAM, ("127.0.0.1", 0))
        self.udp = self._bound(inet, socket.SOCK_DGRAM, ("127.0.0.1", 0))
        self.stream = self._bound(unix, socket.SOCK_STREAM, str(folder / "stream"))
        self.datagram = self._bound(unix, socket.SOCK_DGRAM, str(folder / "datagram"))
        self.abstract = self._bound(unix, socket.SOCK_STREAM, self.name)
        self.abstract_datagram = self._bound(unix, socket.SOCK_DGRAM, self.name + "-d")
        for name in ("stream", "datagram"):
            (folder / name).chmod(0o777)
        give(folder, user)

    def _bound(self, family: int, kind: int, address: object) -> socket.socket:
        made = socket.socket(family, kind)
        made.bind(address)  # type: ignore[arg-type]
        if kind == socket.SOCK_STREAM:
            made.listen()
        made.setblocking(False)
        return made

    def heard(self) -> list[str]:
        """Return which of them heard something."""
        names = []
        for name, one in vars(self).items():
            if not isinstance(one, socket.socket):
                continue
            try:
                if one.type == socket.SOCK_STREAM:
                    one.accept()[0].close()
                else:
                    one.recv(100)
            except BlockingIOError:
                continue
            names.append(name)
        return names

    def close(self) -> None:
        for one in vars(self).values():
            if isinstance(one, socket.socket):
                one.close()


@pytest.fixture
def listeners(ground: Ground) -> Iterator[Listeners]:
    made = Listeners(ground.ws / "sockets", ground.way.user)
    yield made
    made.close()


def numbers(listeners: Listeners) -> str:
    tcp, udp = listeners.tcp.getsockname()[1], listeners.udp.getsockname()[1]
    return f"tcp, udp, abstract = {tcp}, {udp}, {listeners.name!r}\n"


OUT = """
import socket as s
folder = ws + "/sockets/"
def connect(family, kind, address, protocol=0):
    made = s.socket(family, kind, protocol)
    made.settimeout(2)
    made.connect(address)
    made.send(b"x")
def send(family, kind, address, protocol=0):
    s.socket(family, kind, protocol).sendto(b"x", address)
def send_message(family, kind, address):
    s.socket(family, kind).sendmsg([b"x"], [], 0, address)
def pair_message(kind, address):
    one, _ = s.socketpair(s.AF_UNIX, kind)
    one.sendmsg([b"x"], [], 0, address)
def pair_flags(kind, address):
    one, _ = s.socketpair(s.AF_UNIX, kind | s.SOCK_NONBLOCK | s.SOCK_CLOEXEC)
    one.sendmsg([b"x"], [], 0, address)
def raw_socket(family, kind, protocol=0):
    how = syscall(41, family, kind, protocol)
    if isinstance(how, str):
        raise OSError(getattr(errno, how), how)
local = "127.0.0.1"
acts = {
    "tcp": (connect, s.AF_INET, s.SOCK_STREAM, (local, tcp)),
    "tcp6": (connect, s.AF_INET6, s.SOCK_STREAM, ("::1", tcp)),
    "tcp mapped": (connect, s.AF_INET6, s.SOCK_STREAM, ("::ffff:127.0.0.1", tcp)),
    "udp": (connect, s.AF_INET, s.SOCK_DGRAM, (local, udp)),
    "udp sendto": (send, s.AF_INET, s.SOCK_DGRAM, (local, udp)),
    "udp sendmsg": (send_message, s.AF_INET, s.SOCK_DGRAM, (local, udp)),
    "outside": (connect, s.AF_INET, s.SOCK_STREAM, ("192.0.2.1", 80)),
    "raw": (connect, s.AF_INET, s.SOCK_RAW, (local, 0), 1),
    "icmp": (connect, s.AF_INET, s.SOCK_DGRAM, (local, 0), 1),
    "packet": (s.socket, s.AF_PACKET, s.SOCK_RAW, 3),
    "netlink route": (connect, s.AF_NETLINK, s.SOCK_RAW, (0, 0), 0),
    "netlink audit": (connect, s.AF_NETLINK, s.SOCK_RAW, (0, 0), 9),
    "netlink uevent": (s.socket, s.AF_NETLINK, s.SOCK_DGRAM, 15),
    "vsock": (connect, s.AF_VSOCK, s.SOCK_STREAM, (2, 1)),
    "alg": (s.socket, 38, s.SOCK_SEQPACKET),
    "bluetooth": (raw_socket, 31, 1, 3),
    "key": (raw_socket, 15, 3, 2),
    "xdp": (raw_socket, 44, 3, 0),
    "can": (raw_socket, 29, 3, 1),
    "tipc": (raw_socket, 30, 5, 0),
    "sctp": (raw_socket, 2, 1, 132),
    "mptcp": (raw_socket, 2, 1, 262),
    "unix stream": (connect, s.AF_UNIX, s.SOCK_STREAM, folder + "stream"),
    "unix datagram": (connect, s.AF_UNIX, s.SOCK_DGRAM, folder + "datagram"),
    "unix sendto": (send, s.AF_UNIX, s.SOCK_DGRAM, folder + "datagram"),
    "unix sendmsg": (send_message, s.AF_UNIX, s.SOCK_DGRAM, folder + "datagram"),
    "unix raw": (send_message, s.AF_UNIX, s.SOCK_RAW, folder + "datagram"),
    "pair datagram": (pair_message, s.SOCK_DGRAM, folder + "datagram"),
    "pair raw": (pair_message, s.SOCK_RAW, folder + "datagram"),
    "pair flags": (pair_flags, s.SOCK_DGRAM, folder + "datagram"),
    "abstract": (connect, s.AF_UNIX, s.SOCK_STREAM, abstract),
    "abstract sendmsg": (send_message, s.AF_UNIX, s.SOCK_DGRAM, abstract + "-d"),
    "pair abstract": (pair_message, s.SOCK_DGRAM, abstract + "-d"),
}
result = outcomes(acts)
result["listen"] = tried(lambda: s.socket(s.AF_UNIX, s.SOCK_STREAM).bind(ws + "/mine"))
result["io_uring"] = syscall(425, 8, bytes(120))
result["io_uring enter"] = syscall(426, 0, 0, 0, 0, None, 0)
result["wide domain"] = syscall(41, (1 << 32) | s.AF_INET, s.SOCK_STREAM, 0)
result["wide kind"] = syscall(41, s.AF_UNIX, (1 << 32) | s.SOCK_DGRAM, 0)
"""


def test_no_socket_leads_out(any_way: Way, ground: Ground, listeners: Listeners) -> None:
    found = ground.python(numbers(listeners) + OUT)
    assert {name: how for name, how in found.items() if how not in REFUSED} == {}
    assert listeners.heard() == []


def test_the_listeners_do_hear_who_may_speak(way: Way, ground: Ground, listeners: Listeners) -> None:
    """The counter-check: with the network granted the same attempts get through."""
    plan = ground.plan(NETWORK_HOST, FILTER_OPEN)
    found = ground.python(numbers(listeners) + OUT, plan)
    assert {found[name] for name in ("tcp", "udp", "unix stream", "unix sendmsg", "abstract")} == {"None"}
    assert {"tcp", "udp", "stream", "datagram", "abstract"} <= set(listeners.heard())


def test_pairs_of_streams_still_work(any_way: Way, ground: Ground) -> None:
    code = """
import socket as s
result = []
for kind in (s.SOCK_STREAM, s.SOCK_SEQPACKET):
    one, other = s.socketpair(s.AF_UNIX, kind)
    one.sendmsg([b"x"])
    os.write(one.fileno(), b"y")
    result.append(os.read(other.fileno(), 10).decode())
"""
    assert ground.python(code)[0] in ("x", "xy")


@pytest.mark.parametrize("call", ["int 0x80", "x32"])
def test_calls_of_another_architecture_kill(any_way: Way, ground: Ground, call: str) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("only x86-64 has these foreign calls")
    code = f"""
import mmap
def foreign():
    if {call!r} == "x32":
        libc.syscall(ctypes.c_long(0x40000000 | 41), 2, 1, 0)
        return
    page = mmap.mmap(-1, 4096, prot=7)
    # mov eax, 359 (socket); mov ebx, 2; mov ecx, 1; xor edx, edx; int 0x80; ret
    page.write(bytes.fromhex("b867010000 bb02000000 b901000000 31d2 cd80 c3"))
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
child = os.fork()
if child == 0:
    foreign()
    os._exit(0)
result = os.waitpid(child, 0)[1]
"""
    status = ground.python(code)
    assert os.WIFSIGNALED(status), status
    assert os.WTERMSIG(status) in (signal.SIGSYS, signal.SIGSEGV)


def test_the_network_of_a_view_is_empty(way: Way, ground: Ground) -> None:
    if way.back_end == LANDLOCK:
        pytest.skip("Landlock alone makes no namespaces")
    done = ground.run("grep -c : /proc/net/dev; cat /proc/net/tcp | wc -l; cat /proc/net/unix | wc -l")
    devices, tcp, unix = done.out.split()
    assert int(tcp) == 1
    assert int(unix) == 1
    assert int(devices) <= 3
