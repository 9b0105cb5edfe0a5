"""The rows of the comparison: what is measured, in which unit, and which direction is better.

A row is a function of one connection and a folder of its own; it returns its figure, or raises.  Medians are
taken of single operations where the operation is short, so that a busy moment of the machine does not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.client import Client, Gone, Json, request_frame
from bench.process_memory import process_bytes

MIB = 1 << 20


class Setting(NamedTuple):
    """What a row may use: a connection, the server's process and program, a folder; `quick` asks for less."""

    client: Client
    pid: int
    folder: Path
    quick: bool
    program: str

    def scaled(self, full: int, quick: int) -> int:
        """Return the size for this run."""
        return quick if self.quick else full


class Row(NamedTuple):
    """One line of the table; one that takes minutes is measured only if `--only` names it."""

    name: str
    title: str
    unit: str
    higher_is_better: bool
    measure: Callable[[Setting], float]
    takes_minutes: bool = False


def median_s(operation: Callable[[], object], times: int) -> float:
    """Return the median of the seconds that an operation takes."""
    samples = []
    for _ in range(times):
        started = time.perf_counter()
        operation()
        samples.append(time.perf_counter() - started)
    return statistics.median(samples)


def meta_p50(setting: Setting) -> float:
    """Ask for one file's metadata, one request after another."""
    params = {"path": (setting.folder / "small").as_uri()}
    (setting.folder / "small").write_bytes(b"x" * 100)
    return median_s(lambda: setting.client.call("fs/getMetadata", params), setting.scaled(2000, 200)) * 1e6


def pipe_meta(setting: Setting) -> float:
    """Keep 64 metadata requests under way on one connection."""
    (setting.folder / "small").write_bytes(b"x" * 100)
    params: Json = {"path": (setting.folder / "small").as_uri()}
    total, window = setting.scaled(20_000, 2_000), 64
    frame = request_frame(0, "fs/getMetadata", params)
    started = time.perf_counter()
    setting.client.send_prepared(frame * window)
    for received in range(total):
        setting.client.receive()
        if received + window < total:
            setting.client.send_prepared(frame)
    return total / (time.perf_counter() - started)


def info_of(count: int) -> Callable[[Setting], float]:
    """Return what keeps a request under way on each of so many connections, all from one thread."""

    def measure(setting: Setting) -> float:
        clients = [Client(setting.client.url) for _ in range(count)]
        frame, rounds = request_frame(0, "environment/info", {}), setting.scaled(8_000, 800) // count
        started = time.perf_counter()
        for client in clients:
            client.send_prepared(frame)
        for left in reversed(range(rounds)):
            for client in clients:
                client.receive()
                if left:
                    client.send_prepared(frame)
        rate = rounds * count / (time.perf_counter() - started)
        for client in clients:
            client.close()
        return rate

    return measure


def true_p50(setting: Setting) -> float:
    """Start /bin/true with pipes and wait until it is closed."""
    return _true(setting, tty=False)


def truetty_p50(setting: Setting) -> float:
    """Start /bin/true on a terminal and wait until it is closed."""
    return _true(setting, tty=True)


def key_p50(setting: Setting) -> float:
    """Type a key into `cat` on a terminal and wait for its echo."""
    process_id = _start(setting, ["/bin/cat"], tty=True)
    counter = iter(range(1_000_000))

    def key() -> None:
        write_id = f"w{next(counter)}"
        setting.client.send(
            {
                "id": write_id,
                "method": "process/write",
                "params": {"processId": process_id, "chunk": "eA==", "writeId": write_id},
            }
        )
        setting.client.wait_for("process/output", process_id)

    key()
    figure = median_s(key, setting.scaled(200, 20)) * 1e3
    setting.client.call("process/terminate", {"processId": process_id})
    setting.client.wait_for("process/closed", process_id)
    return figure


def stream_pipe(setting: Setting) -> float:
    """Let one process write zeros to a pipe as fast as it is read."""
    return _stream(setting, setting.scaled(256 * MIB, 32 * MIB), tty=False)


def stream_tty(setting: Setting) -> float:
    """Let one process write zeros to a terminal as fast as it is read."""
    return _stream(setting, setting.scaled(64 * MIB, 8 * MIB), tty=True)


def read1m(setting: Setting) -> float:
    """Read a file of 1 MiB."""
    return _read(setting, MIB, setting.scaled(30, 5))


def read64m(setting: Setting) -> float:
    """Read a file of 64 MiB."""
    return _read(setting, 64 * MIB, setting.scaled(3, 1))


def dir10k(setting: Setting) -> float:
    """List a folder of 10,000 files."""
    folder = setting.folder / "many"
    folder.mkdir(exist_ok=True)
    for number in range(10_000):
        (folder / f"file-{number:05}").touch()
    params = {"path": folder.as_uri()}
    return median_s(lambda: setting.client.call("fs/readDirectory", params), setting.scaled(10, 2)) * 1e3


def load_memory(setting: Setting) -> float:
    """Work for a minute, rest for ten seconds, and look what the server's processes hold."""
    small, large = setting.folder / "small", setting.folder / "large"
    small.write_bytes(b"x" * 100)
    large.write_bytes(bytes(MIB))
    until = time.monotonic() + setting.scaled(60, 5)
    while time.monotonic() < until:
        with Client(setting.client.url) as client:
            visitor = setting._replace(client=client)
            for _ in range(20):
                client.call("environment/info", {})
                client.call("fs/getMetadata", {"path": small.as_uri()})
                client.call("fs/readFile", {"path": large.as_uri()})
                client.wait_for("process/closed", _start(visitor, ["/bin/true"], tty=False))
    time.sleep(setting.scaled(10, 2))
    return process_bytes(setting.pid, ["Pss"]) / MIB


ROWS = [
    Row("meta_p50", "fs/getMetadata round trip", "us", False, meta_p50),
    Row("pipe_meta", "fs/getMetadata, 64 under way", "req/s", True, pipe_meta),
    Row("info2", "environment/info, 2 clients", "req/s", True, info_of(2)),
    Row("info4", "environment/info, 4 clients", "req/s", True, info_of(4)),
    Row("info8", "environment/info, 8 clients", "req/s", True, info_of(8)),
    Row("true_p50", "/bin/true, pipe, start to closed", "ms", False, true_p50),
    Row("truetty_p50", "/bin/true, tty, start to closed", "ms", False, truetty_p50),
    Row("key_p50", "key to echo on a tty", "ms", False, key_p50),
    Row("stream_pipe", "output of one process, pipe", "MB/s", True, stream_pipe),
    Row("stream_tty", "output of one process, tty", "MB/s", True, stream_tty),
    Row("read1m", "fs/readFile of 1 MiB", "ms", False, read1m),
    Row("read64m", "fs/readFile of 64 MiB", "ms", False, read64m),
    Row("dir10k", "fs/readDirectory, 10,000 entries", "ms", False, dir10k),
    Row("load_memory", "memory after a minute of load", "MiB", False, load_memory, takes_minutes=True),
]


def unique_id() -> str:
    """Return a process id that no other start has."""
    return f"p{time.perf_counter_ns()}"


def _start(setting: Setting, argv: list[str], *, tty: bool) -> str:
    process_id = unique_id()
    setting.client.call(
        "process/start",
        {
            "processId": process_id,
            "argv": argv,
            "cwd": setting.folder.as_uri(),
            "env": {"PATH": "/usr/bin:/bin"},
            "tty": tty,
        },
    )
    return process_id


def _true(setting: Setting, *, tty: bool) -> float:
    def once() -> None:
        setting.client.wait_for("process/closed", _start(setting, ["/bin/true"], tty=tty))

    return median_s(once, setting.scaled(100, 10)) * 1e3


def _stream(setting: Setting, size: int, *, tty: bool) -> float:
    started = time.perf_counter()
    process_id = _start(setting, ["/usr/bin/head", "-c", str(size), "/dev/zero"], tty=tty)
    received = 0
    while True:
        message = setting.client.receive()
        if b'"process/output"' in message[:64]:
            received += _payload_bytes(message)
        elif b'"process/closed"' in message[:64] and process_id.encode() in message:
            break
    took = time.perf_counter() - started
    if received != size:
        raise Gone(f"{received} of {size} bytes arrived")
    return received / took / 1e6


def _payload_bytes(message: bytes) -> int:
    """Count the bytes a `chunk` member stands for without decoding it."""
    start = message.index(b'"chunk":"') + 9
    end = message.index(b'"', start)
    return (end - start) // 4 * 3 - message[end - 2 : end].count(b"=")


def _read(setting: Setting, size: int, times: int) -> float:
    file = setting.folder / f"file-{size}"
    file.write_bytes(bytes(size))
    frame = request_frame(1_000_000_000, "fs/readFile", {"path": file.as_uri()})

    def once() -> None:
        setting.client.send_prepared(frame)
        message = setting.client.receive()
        if len(message) < size * 4 // 3:
            raise Gone(message[:200].decode(errors="replace"))

    figure = median_s(once, times) * 1e3
    file.unlink()
    return figure
