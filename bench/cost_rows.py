"""The operations whose cost is counted: each is done N times on a server that runs, by the plain client.

A row is a function of a server's URL, a folder of its own and N.  It leaves the server as it found it.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from bench import cost_client, cost_ports, cost_remote
from bench.client import Client, Refused
from bench.cost_client import CLIENT
from bench.cost_remote import EXECUTOR, RELAY

MIB = 1 << 20
SERVER = "server"
_UNIQUE = itertools.count()
READ_ONLY: dict[str, Any] = {
    "type": "managed",
    "network": "restricted",
    "file_system": {
        "type": "restricted",
        "entries": [{"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}],
    },
}


class CostRow(NamedTuple):
    """One operation: `times` is how often a measurement does it, `subject` whose cost is counted.

    `options` are more words of the server's command line; `{place}` is the folder of the measurement.
    """

    name: str
    title: str
    times: int
    act: Callable[[str, Path, int], None]
    subject: str = SERVER
    options: tuple[str, ...] = ()


def info(url: str, folder: Path, times: int) -> None:
    """Ask for the description of the machine."""
    with Client(url) as client:
        for _ in range(times):
            client.call("environment/info", {})


def metadata(url: str, folder: Path, times: int) -> None:
    """Ask for one file's metadata."""
    (folder / "small").write_bytes(b"x")
    with Client(url) as client:
        for _ in range(times):
            client.call("fs/getMetadata", {"path": (folder / "small").as_uri()})


def not_found(url: str, folder: Path, times: int) -> None:
    """Ask for the metadata of a file that is not there."""
    with Client(url) as client:
        for _ in range(times):
            try:
                client.call("fs/getMetadata", {"path": (folder / "missing").as_uri()})
            except Refused:
                pass


def change(url: str, folder: Path, times: int) -> None:
    """Write an empty file."""
    with Client(url) as client:
        for _ in range(times):
            client.call("fs/writeFile", {"path": (folder / "changed").as_uri(), "dataBase64": ""})


def key(url: str, folder: Path, times: int) -> None:
    """Type a key into `cat` on a terminal, and have its echo."""
    with Client(url) as client:
        process_id = _start(client, folder, ["/bin/cat"], tty=True)
        for number in range(times):
            params = {"processId": process_id, "chunk": "eA==", "writeId": f"w{number}"}
            client.call("process/write", params)
            client.wait_for("process/output", process_id)
        client.call("process/terminate", {"processId": process_id})
        client.wait_for("process/closed", process_id)


def push(url: str, folder: Path, times: int) -> None:
    """Have what a process writes, a byte each time."""
    fifo = folder / f"fifo{next(_UNIQUE)}"
    os.mkfifo(fifo)
    with Client(url) as client:
        process_id = _start(client, folder, ["/bin/cat", fifo.name])
        with open(fifo, "wb", buffering=0) as end:
            for _ in range(times):
                end.write(b"x")
                client.wait_for("process/output", process_id)
        client.wait_for("process/closed", process_id)


def stream(url: str, folder: Path, times: int) -> None:
    """Have the output of one process, a MiB each time."""
    with Client(url) as client:
        process_id = _start(client, folder, ["/usr/bin/head", "-c", str(times * MIB), "/dev/zero"])
        client.wait_for("process/closed", process_id)


def connect(url: str, folder: Path, times: int, token: str | None = None) -> None:
    """Connect, upgrade, and leave; with the token in a file of the folder, if one is named."""
    parts = urlsplit(url)
    shown = b"" if token is None else b"Authorization: Bearer %b\r\n" % (folder / token).read_bytes()
    for _ in range(times):
        with closing(socket.create_connection((str(parts.hostname), int(parts.port or 0)))) as connection:
            connection.sendall(
                b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n%b\r\n" % shown
            )
            answer = connection.recv(65536)
            if not answer.startswith(b"HTTP/1.1 101"):
                raise SystemExit(f"bench: the server does not let in: {answer!r}")


def initialize(url: str, folder: Path, times: int) -> None:
    """Connect, upgrade, initialize, and leave."""
    for _ in range(times):
        Client(url).close()


def resume(url: str, folder: Path, times: int) -> None:
    """Connect, upgrade, initialize with the session of the connection before, and leave."""
    client = Client(url)
    for _ in range(times):
        client.leave()
        client = Client(url, client.session_id)
    client.leave()


def start_true(url: str, folder: Path, times: int) -> None:
    """Run /bin/true with pipes to its end."""
    with Client(url) as client:
        for _ in range(times):
            client.wait_for("process/closed", _start(client, folder, ["/bin/true"]))


def sandboxed_true(url: str, folder: Path, times: int) -> None:
    """Run /bin/true in a read-only sandbox to its end."""
    sandbox = {"permissions": READ_ONLY, "windowsSandboxLevel": "disabled", "cwd": folder.as_uri()}
    with Client(url) as client:
        for _ in range(times):
            client.wait_for("process/closed", _start(client, folder, ["/bin/true"], sandbox=sandbox))


def sandboxed_metadata(url: str, folder: Path, times: int) -> None:
    """Ask for one file's metadata in a read-only sandbox."""
    (folder / "small").write_bytes(b"x")
    sandbox = {"permissions": READ_ONLY, "windowsSandboxLevel": "disabled", "cwd": folder.as_uri()}
    params = {"path": (folder / "small").as_uri(), "sandbox": sandbox}
    with Client(url) as client:
        for _ in range(times):
            client.call("fs/getMetadata", params)


ROWS = [
    CostRow("info", "environment/info", 400, info),
    CostRow("metadata", "fs/getMetadata", 400, metadata),
    CostRow("notfound", "fs/getMetadata of nothing", 400, not_found),
    CostRow("change", "fs/writeFile of nothing", 400, change),
    CostRow("audited", "the same with an audit log", 400, change, SERVER, ("--audit", "{place}/audit")),
    CostRow("key", "key to echo on a tty", 300, key),
    CostRow("push", "a line pushed by a process", 300, push),
    CostRow("stream", "a MiB of output", 32, stream),
    CostRow("port_open", "a forwarded connection, a byte there and back", 100, cost_ports.opened),
    CostRow("port_down", "a MiB from a forwarded connection", 32, cost_ports.down),
    CostRow("port_up", "a MiB to a forwarded connection", 32, cost_ports.up),
    CostRow("connect", "connect and upgrade", 100, connect),
    CostRow("initialize", "connect, upgrade, initialize", 100, initialize),
    CostRow("resume", "connect, upgrade, resume a session", 100, resume),
    CostRow("start", "/bin/true, start to closed", 60, start_true),
    CostRow("sb_start", "the same in a sandbox", 80, sandboxed_true),
    CostRow("sb_metadata", "fs/getMetadata in a sandbox", 200, sandboxed_metadata),
    CostRow("client_key", "key to echo, the person's client", 300, cost_client.key, CLIENT),
    CostRow("x_info", "info through a relay, the executor", 150, cost_remote.info, EXECUTOR),
    CostRow("x_metadata", "metadata through a relay, the executor", 150, cost_remote.metadata, EXECUTOR),
    CostRow("x_key", "key through a relay, the executor", 150, cost_remote.key, EXECUTOR),
    CostRow("x_shake", "a harness that comes and goes, the executor", 10, cost_remote.initialize, EXECUTOR),
    CostRow("r_info", "info through a relay, the relay", 150, cost_remote.info, RELAY),
    CostRow("r_key", "key through a relay, the relay", 150, cost_remote.key, RELAY),
    CostRow("r_shake", "a harness that comes and goes, the relay", 10, cost_remote.initialize, RELAY),
]


def _start(client: Client, folder: Path, argv: list[str], tty: bool = False, **more: Any) -> str:
    process_id = f"p{next(_UNIQUE)}"
    params = {"processId": process_id, "argv": argv, "cwd": folder.as_uri(), "tty": tty}
    client.call("process/start", {**params, "env": {"PATH": "/usr/bin:/bin"}, **more})
    return process_id
