"""Run by a process with a network proxy: measures one row of `egress.py`, and prints its figure."""

from __future__ import annotations

import os
import socket
import statistics
import sys
import time

_IDLE_S = 3.0


Place = tuple[str, int]


def address(variable: str) -> Place:
    """Return where a proxy listens."""
    host, _, port = os.environ[variable].rpartition("//")[2].rpartition(":")
    return host, int(port)


def through_connect(port: int, proxy: Place | None = None) -> socket.socket:
    """Return a tunnel to the server."""
    sock = socket.create_connection(proxy or address("HTTP_PROXY"))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    place = b"127.0.0.1:%d" % port
    sock.sendall(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (place, place))
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        data += sock.recv(4096)
    if b" 200 " not in data:
        raise OSError(data.decode())
    return sock


def through_socks(port: int, proxy: Place | None = None) -> socket.socket:
    """Return a SOCKS connection to the server."""
    sock = socket.create_connection(proxy or address("ALL_PROXY"))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(b"\x05\x01\x00")
    sock.recv(2)
    sock.sendall(b"\x05\x01\x00\x01\x7f\x00\x00\x01" + port.to_bytes(2, "big"))
    if sock.recv(10)[1:2] != b"\x00":
        raise OSError("refused")
    return sock


def direct(port: int) -> socket.socket:
    """Return a connection without a proxy."""
    return socket.create_connection(("127.0.0.1", port))


def opening(way: str, size: int, port: int) -> float:
    """Return the median time until the first byte of the server, in ms."""
    make = {"direct": direct, "connect": through_connect, "socks": through_socks}[way]
    times = []
    for _ in range(size):
        began = time.perf_counter()
        with make(port) as sock:
            sock.sendall(b"x\n")
            sock.recv(1)
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def getting(size: int, port: int) -> float:
    """Return the median time of a plain GET on one connection, in ms."""
    request = b"GET http://127.0.0.1:%d/ HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (port, port)
    times = []
    with socket.create_connection(address("HTTP_PROXY")) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(size):
            began = time.perf_counter()
            sock.sendall(request)
            data = b""
            while not data.endswith(b"\r\n\r\nk"):
                data += sock.recv(4096)
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def moving(way: str, size: int, port: int) -> float:
    """Return how fast many bytes go one way, in MB/s."""
    piece = memoryview(bytearray(1 << 20))
    with through_connect(port) as sock:
        sock.sendall(b"%b %d\n" % (way.encode(), size))
        began = time.perf_counter()
        left = size
        if way == "up":
            while left > 0:
                left -= sock.send(piece[:left])
            sock.recv(1)
        else:
            while left > 0 and (count := sock.recv_into(piece)):
                left -= count
        return size / (time.perf_counter() - began) / 1e6


def holding(size: int, port: int, server: int, *, idle: bool) -> float:
    """Open many tunnels; return how long that took, or the CPU that the server takes while they are idle."""
    began = time.perf_counter()
    tunnels = [through_connect(port) for _ in range(size)]
    for sock in tunnels:
        sock.sendall(b"x\n")
    for sock in tunnels:
        sock.recv(1)
    took = time.perf_counter() - began
    if not idle:
        return took
    time.sleep(1)
    before = used(server)
    time.sleep(_IDLE_S)
    return (used(server) - before) / _IDLE_S


def used(pid: int) -> float:
    """Return the CPU time of a process and its threads so far, in ms."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def main(row: str, size: int, port: int, server: int) -> float:
    """Return the figure of a row."""
    if row == "get":
        return getting(size, port)
    if row in ("down", "up"):
        return moving(row, size, port)
    if row in ("many", "idle"):
        return holding(size, port, server, idle=row == "idle")
    return opening(row, size, port)


if __name__ == "__main__":
    sys.stdout.write(f"{main(sys.argv[1], *map(int, sys.argv[2:]))}\n")
