"""Measures the network proxy of a process beside the newest reference's and prints a Markdown table.

    python3 build.py bench egress [--quick] [--rounds N] [--only ROW,ROW] [--reference PROGRAM]

A process of the server under measurement (`egress_process.py`) goes through its proxy to a server in this
process, on loopback.  Rounds are interleaved, medians are shown.
"""

from __future__ import annotations

import argparse
import base64
import json
import shlex
import socket
import statistics
import sys
import threading
from pathlib import Path
from typing import NamedTuple

from bench.client import Client, Gone, Json, Refused
from bench.server import Server, StartFailed

REFERENCE_VERSION = "0.169.0"
LISTEN = "--listen ws://127.0.0.1:0"
PROGRAM = Path(__file__).with_name("egress_process.py")
_PIECE = memoryview(bytes(1 << 20))


class Row(NamedTuple):
    """One figure; `size`, or `quick` in a quick run, is how often, how many bytes or connections."""

    name: str
    title: str
    unit: str
    size: int
    quick: int
    higher_is_better: bool = False


ROWS = (
    Row("direct", "connect without a proxy, p50", "ms", 1000, 100),
    Row("connect", "connect through CONNECT, p50", "ms", 1000, 100),
    Row("socks", "connect through SOCKS, p50", "ms", 1000, 100),
    Row("get", "plain GET on an open connection, p50", "ms", 1000, 100),
    Row("down", "from the server through CONNECT", "MB/s", 4 << 30, 256 << 20, higher_is_better=True),
    Row("up", "to the server through CONNECT", "MB/s", 4 << 30, 256 << 20, higher_is_better=True),
    Row("many", "1,000 tunnels opened at once", "s", 1000, 200),
    Row("idle", "CPU of the server, 1,000 idle tunnels", "ms/s", 1000, 200),
)


def main(argv: list[str]) -> int:
    """Measure and print; return the exit status."""
    options = _parser().parse_args(argv)
    wanted = options.only.split(",") if options.only else [row.name for row in ROWS]
    rows = [row for row in ROWS if row.name in wanted]
    servers = {"ours": f"{shlex.quote(options.ours)} {LISTEN}"}
    if reference := options.reference or _installed():
        servers = {"0.169.0": f"{shlex.quote(reference)} exec-server {LISTEN}", **servers}
    rounds = options.rounds or (1 if options.quick else 5)
    found: dict[str, dict[str, list[float]]] = {row.name: {name: [] for name in servers} for row in rows}
    notes: dict[str, None] = {}
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as upstream:
        threading.Thread(target=_accept, args=(upstream,), daemon=True).start()
        for number in range(rounds):
            for row in rows:
                for name in sorted(servers, reverse=bool(number % 2)):
                    print(f"round {number + 1}/{rounds} {row.name} {name}", file=sys.stderr)
                    try:
                        size = row.quick if options.quick else row.size
                        port = upstream.getsockname()[1]
                        found[row.name][name].append(measure(name, servers[name], row.name, size, port))
                    except (Gone, Refused, StartFailed, OSError, ValueError) as error:
                        notes[f"{row.name} of {name}: {error}"] = None
    print(table(rows, found, list(servers)))
    for note in notes:
        print(f"- {note}")
    return 0


def measure(name: str, command: str, row: str, size: int, port: int) -> float:
    """Have a process of a server go through its proxy; return the figure that it prints."""
    with Server(name, command, None) as server, Client(server.url) as client:
        argv = [sys.executable, str(PROGRAM), row, str(size), str(port), str(server.pid)]
        client.send({"id": 99, "method": "process/start", "params": _start(argv)})
        output = b""
        while True:
            message: Json = json.loads(client.receive())
            if "error" in message:
                raise Refused(message["error"]["message"])
            if message.get("method") == "process/output":
                output += base64.b64decode(message["params"]["chunk"])
            elif message.get("method") == "process/closed":
                return float(output)


def _start(argv: list[str]) -> Json:
    start: Json = {"processId": "p", "argv": argv, "cwd": "file:///", "env": {}, "tty": False}
    return start | {"networkProxy": proxy_launch()}


def proxy_launch() -> Json:
    """Return the settings of a proxy that leads to this machine."""
    proxy: Json = {"enabled": True, "enableSocks5": True, "enableSocks5Udp": False, "mode": "full"}
    proxy |= {"allowUpstreamProxy": False, "dangerouslyAllowAllUnixSockets": False, "unixSockets": None}
    proxy |= {"domains": {"127.0.0.1": "allow"}, "allowLocalBinding": False}
    return {"proxy": proxy}


def table(rows: list[Row], found: dict[str, dict[str, list[float]]], names: list[str]) -> str:
    """Return the medians side by side."""
    lines = [["what", "unit", *names], ["---"] * (2 + len(names))]
    for row in rows:
        medians = [found[row.name][name] for name in names]
        cells = [f"{statistics.median(values):.3g}" if values else "-" for values in medians]
        lines.append([row.title, row.unit, *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _accept(listener: socket.socket) -> None:
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(sock,), daemon=True).start()


def _serve(sock: socket.socket) -> None:
    """Answer lines: `down N` with N bytes, `up N` with a byte behind N; a GET with an empty answer."""
    try:
        with sock:
            while line := _line(sock):
                word, _, rest = line.partition(b" ")
                if word == b"down":
                    for left in range(int(rest), 0, -len(_PIECE)):
                        sock.sendall(_PIECE[:left])
                elif word == b"up":
                    _read(sock, int(rest))
                    sock.sendall(b"k")
                elif word == b"GET":
                    while _line(sock):
                        pass
                    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nk")
                else:
                    sock.sendall(b"k")
    except OSError:
        return


def _read(sock: socket.socket, left: int) -> None:
    buffer = bytearray(1 << 20)
    while left > 0:
        count = sock.recv_into(buffer, min(left, len(buffer)))
        if not count:
            return
        left -= count


def _line(sock: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        more = sock.recv(1)
        if not more:
            return b""
        data += more
    return data.strip()


def _installed() -> str | None:
    from tests.reference.install import ReferenceMissing, binary_path

    try:
        path = binary_path(REFERENCE_VERSION)
    except ReferenceMissing:
        return None
    return str(path) if path.exists() else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="build.py bench egress")
    parser.add_argument("--ours", required=True)
    parser.add_argument("--reference")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--only")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
