"""A network of its own with the hosts of the recorded proxy traffic, and servers on them.

`python -m tests.support.egress_world FOLDER`, in network and mount namespaces made for it: puts addresses on
loopback, its own `/etc/hosts` and `/etc/resolv.conf` over the machine's, and serves until its input ends.
`World` starts it and gives the beginning of a command line that runs a program in there.
"""

from __future__ import annotations

import collections
import fcntl
import http.server
import os
import socket
import socketserver
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

PUBLIC, PRIVATE, META = "93.184.216.34", "10.9.9.9", "169.254.169.254"
_PUBLIC_NAMES = (
    "allowed",
    "sub.allowed",
    "deep.sub.allowed",
    "xallowed",
    "blocked",
    "ask",
    "other",
    "public",
)
HTTP_PORTS, ECHO_PORTS = (80, 8080), (443, 22)
# Names of `/etc/resolv.conf`, by how often they were asked for.
_FLIPS = {"flip.example": 1, "flip2.example": 2}
_ANSWERS = {"multi.example": [PUBLIC, PRIVATE], "stable.example": [PUBLIC], "cgnat.example": ["100.64.0.9"]}

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8913, 0x8914, 0x8916, 0x891C
_IFF_UP = 1


class World:
    """The running network; its owner closes it."""

    def __init__(self, folder: Path, *, knows_names: bool = True) -> None:
        """Start it; skip the test where no namespaces can be made."""
        self._is_root = os.geteuid() == 0
        users = () if self._is_root else ("--map-root-user",)
        command = ["unshare", *users, "--net", "--mount", sys.executable, "-m", __name__, str(folder)]
        command += ["knows names"] if knows_names else []
        root = str(Path(__file__).resolve().parents[2])
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        if self._process.stdout.readline() != b"ready\n":
            why = self._process.stderr.read().decode()
            self.close()
            pytest.skip(f"no network of its own can be made here: {why.strip()[-200:]}")

    @property
    def command(self) -> tuple[str, ...]:
        """The beginning of a command line that runs a program in there."""
        users = () if self._is_root else ("--user", "--preserve-credentials")
        return (
            "nsenter",
            f"--target={self._process.pid}",
            *users,
            "--net",
            "--mount",
            f"--wdns={os.getcwd()}",
        )

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()
        assert self._process.stderr is not None
        self._process.stderr.close()


class _Requests(http.server.BaseHTTPRequestHandler):
    """Answers with what it was asked; as a proxy it answers CONNECT with a line."""

    protocol_version = "HTTP/1.1"

    def __getattr__(self, name: str) -> object:
        if name.startswith("do_"):
            return self._tell
        raise AttributeError(name)

    def _tell(self) -> None:
        if self.command == "CONNECT":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"UPCONNECT {self.path}\n".encode())
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        fields = "".join(f"{name}: {value}\n" for name, value in self.headers.items())
        text = f"UP {self.command} {self.path}\n{fields}BODY ".encode() + body
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.send_header("x-up", "1")
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class _Web(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    allow_reuse_address = True


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.sendall(b"hello-tcp\n")
        while data := self.request.recv(4096):
            self.request.sendall(b"echo:" + data)


class _Plain(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


def _serve_names(sock: socket.socket) -> None:
    """Answer a name server's questions about A; names that flip become loopback."""
    asked: collections.Counter[str] = collections.Counter()
    while True:
        question, client = sock.recvfrom(512)
        labels, at = [], 12
        while question[at]:
            labels.append(question[at + 1 : at + 1 + question[at]].decode())
            at += question[at] + 1
        name = ".".join(labels).lower()
        (kind,) = struct.unpack(">H", question[at + 1 : at + 3])
        if kind == 1:
            asked[name] += 1
        known = name in _FLIPS or name in _ANSWERS
        found = _found(name, asked[name]) if kind == 1 else []
        answers = b"".join(b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4" + socket.inet_aton(one) for one in found)
        flags = b"\x81\x80" if known else b"\x81\x83"
        counts = b"\0\1" + struct.pack(">H", len(found)) + b"\0\0\0\0"
        sock.sendto(question[:2] + flags + counts + question[12 : at + 5] + answers, client)


def _found(name: str, count: int) -> list[str]:
    if name in _FLIPS:
        return [PUBLIC] if count <= _FLIPS[name] else ["127.0.0.1"]
    return _ANSWERS.get(name, [])


def _interface(sock: socket.socket, request: int, name: str, content: bytes) -> bytes:
    return fcntl.ioctl(sock.fileno(), request, struct.pack("16s24s", name.encode(), content))


def _make_network() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        flags = struct.unpack("16xH", _interface(sock, _SIOCGIFFLAGS, "lo", b"")[:18])[0]
        _interface(sock, _SIOCSIFFLAGS, "lo", struct.pack("H", flags | _IFF_UP))
        for index, address in enumerate((PUBLIC, PRIVATE, META)):
            family = struct.pack("HH", socket.AF_INET, 0)
            _interface(sock, _SIOCSIFADDR, f"lo:{index}", family + socket.inet_aton(address))
            _interface(sock, _SIOCSIFNETMASK, f"lo:{index}", family + b"\xff" * 4)


def _cover(folder: Path, knows_names: bool) -> None:
    names = " ".join(f"{name}.example" for name in _PUBLIC_NAMES)
    hosts = f"127.0.0.1 localhost loop.example\n{PUBLIC} {names}\n"
    hosts += f"{PRIVATE} private.example\n{META} meta.example\n"
    hosts = hosts if knows_names else "127.0.0.1 localhost\n"
    for name, text in (
        ("hosts", hosts),
        ("resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"),
    ):
        (folder / name).write_text(text)
        subprocess.run(["mount", "--bind", folder / name, f"/etc/{name}"], check=True)


def main(folder: Path, knows_names: str = "") -> None:
    """Make the network, and serve until the input ends."""
    _make_network()
    _cover(folder, bool(knows_names))
    servers: list[socketserver.TCPServer] = [_Web(("0.0.0.0", port), _Requests) for port in HTTP_PORTS]
    servers += [_Plain(("0.0.0.0", port), _Echo) for port in ECHO_PORTS]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind(("127.0.0.1", 53))
    threading.Thread(target=_serve_names, args=(names,), daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
