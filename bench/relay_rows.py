"""What is measured of remote mode: rows of the relay alone, and of an executor behind it."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.relay_ends import ENVIRONMENT, Executor, RelayUnderTest, relay_frame

MIB = 1 << 20
_RECORD = 61_456  # a full record: 60 KiB and its tag
_KEYSTROKES_PAUSE_S = 0.002
_TOKENS_NOTICED_S = 2.5
_AT_REST_S = 3.0


class Row(NamedTuple):
    """How a line of the table is shown."""

    title: str
    unit: str
    higher_is_better: bool


class RelayRow(NamedTuple):
    """One line: what is shown, and how it is measured; True asks for small sizes."""

    row: Row
    measure: Callable[[RelayUnderTest, bool], float]


class ExecutorRow(NamedTuple):
    """The same for an executor behind a relay."""

    row: Row
    measure: Callable[[RelayUnderTest, Executor, bool], float]


def rate(relay: RelayUnderTest, quick: bool) -> float:
    """Stream full records from an executor to a harness."""
    total = (64 if quick else 1024) * MIB
    return total / MIB / _pump(relay, relay_frame("s", _RECORD), total)[0]


def frames(relay: RelayUnderTest, quick: bool) -> float:
    """Stream frames of 100 bytes."""
    count = 50_000 if quick else 400_000
    frame = relay_frame("s", 100)
    return count / _pump(relay, frame, count * len(frame))[0]


def cpu_per_gib(relay: RelayUnderTest, quick: bool) -> float:
    """Stream full records, and look at the CPU time."""
    total = (128 if quick else 1024) * MIB
    return _pump(relay, relay_frame("s", _RECORD), total)[1] / total * 1024 * MIB


def idle(relay: RelayUnderTest, quick: bool) -> float:
    """Connect the executors of 1,000 environments and leave them alone."""
    names = [f"idle-{number}" for number in range(200 if quick else 1000)]
    tokens = [relay.make_token(name) for name in names]
    time.sleep(_TOKENS_NOTICED_S)
    sockets = [relay.scripted_executor(tokens[0], names[0])]  # what the first one loads stays out
    before = relay.resident_bytes
    for token, name in zip(tokens[1:], names[1:], strict=True):
        sockets.append(relay.scripted_executor(token, name))
    used = relay.resident_bytes - before
    for sock in sockets:
        sock.close()
    return used / (len(names) - 1) * 1000 / MIB


def handshake(relay: RelayUnderTest, quick: bool) -> float:
    """Ask the registry, connect, shake hands, initialize; again and again with a fresh client."""
    times = []
    for _ in range(5 if quick else 30):
        begun = time.perf_counter()
        client = _client(relay)
        times.append(time.perf_counter() - begun)
        client.close()
    return statistics.median(times) * 1000


def shake(relay: RelayUnderTest, executor: Executor, quick: bool) -> float:
    """Measure a handshake with an executor."""
    return handshake(relay, quick)


def info(relay: RelayUnderTest, executor: Executor, quick: bool) -> float:
    """Ask for the description of the machine, one request after another."""
    return _request_us(relay, quick, "environment/info", {})


def metadata(relay: RelayUnderTest, executor: Executor, quick: bool) -> float:
    """Ask for one file's metadata, one request after another."""
    return _request_us(relay, quick, "fs/getMetadata", {"path": Path(__file__).as_uri()})


def keystroke(relay: RelayUnderTest, executor: Executor, quick: bool) -> float:
    """Write a byte to `cat` and wait until it comes back."""
    times = []
    client = _client(relay)
    process = client.start(["cat"], pipe_stdin=True)
    events = iter(process)
    for _ in range(20 if quick else 200):
        time.sleep(_KEYSTROKES_PAUSE_S)
        begun = time.perf_counter()
        process.write(b"k")
        next(events)
        times.append(time.perf_counter() - begun)
    process.terminate()
    client.close()
    return statistics.median(times) * 1000


def stream(relay: RelayUnderTest, executor: Executor, quick: bool) -> float:
    """Read what a process prints as fast as it can."""
    size = (16 if quick else 128) * MIB
    client = _client(relay)
    begun = time.perf_counter()
    _print_zeros(client, size)
    took = time.perf_counter() - begun
    client.close()
    return size / MIB / took


def memory(relay: RelayUnderTest, executor: Executor, quick: bool) -> float:
    """Have harnesses come, work and go, and look what the executor's processes have then."""
    _load(relay, quick)
    return executor.memory_bytes / MIB


def written_memory(relay: RelayUnderTest, executor: Executor, quick: bool) -> float:
    """Look after the same load at the pages alone that the executor's processes have written to.

    The others, of the program and its libraries, the kernel can drop and read again.
    """
    _load(relay, quick)
    return executor.written_bytes / MIB


RELAY_ROWS = {
    "relay_rate": RelayRow(Row("relay alone, full records", "MiB/s", True), rate),
    "relay_frames": RelayRow(Row("relay alone, frames of 100 bytes", "frames/s", True), frames),
    "relay_cpu": RelayRow(Row("relay alone, CPU for a GiB in full records", "s/GiB", False), cpu_per_gib),
    "relay_idle": RelayRow(Row("relay alone, memory of 1,000 idle environments", "MiB", False), idle),
}
EXECUTOR_ROWS = {
    "remote_shake": ExecutorRow(Row("connect, handshake, initialize", "ms", False), shake),
    "remote_info": ExecutorRow(Row("environment/info round trip", "us", False), info),
    "remote_meta": ExecutorRow(Row("fs/getMetadata round trip", "us", False), metadata),
    "remote_key": ExecutorRow(Row("keystroke to `cat` and back", "ms", False), keystroke),
    "remote_rate": ExecutorRow(Row("output of a process", "MiB/s", True), stream),
    "remote_memory": ExecutorRow(Row("executor's memory after a load", "MiB", False), memory),
    "remote_dirty": ExecutorRow(Row("the same, pages written to alone", "MiB", False), written_memory),
}


def _request_us(relay: RelayUnderTest, quick: bool, method: str, params: dict[str, Any]) -> float:
    """Return the median of a request's round trips."""
    times = []
    client = _client(relay)
    for _ in range(200 if quick else 2000):
        begun = time.perf_counter()
        client.call(method, params)
        times.append(time.perf_counter() - begun)
    client.close()
    return statistics.median(times) * 1e6


def _load(relay: RelayUnderTest, quick: bool) -> None:
    """Let harnesses come one after another; each asks, reads output and goes."""
    file = Path(__file__).as_uri()
    for _ in range(5 if quick else 30):
        client = _client(relay)
        for _ in range(50):
            client.call("environment/info", {})
            client.call("fs/readFile", {"path": file})
        _print_zeros(client, 4 * MIB)
        client.close()
    time.sleep(_AT_REST_S)


def _print_zeros(client: Any, size: int) -> None:
    done = client.start(["head", "-c", str(size), "/dev/zero"]).communicate(max_output=2 * size)
    if len(done.stdout) != size:
        raise RuntimeError(f"{len(done.stdout)} of {size} bytes arrived")


def _pump(relay: RelayUnderTest, frame: bytes, total: int) -> tuple[float, float]:
    """Send whole frames from an executor; return seconds until all arrived, and the relay's CPU seconds."""
    with relay.scripted_executor() as executor, relay.scripted_harness() as harness:
        harness.sendall(relay_frame("s", 1))
        executor.recv(100)
        count = -(-total // len(frame))
        block = frame * max(1, MIB // len(frame))
        sending = threading.Thread(target=_send, args=(executor, block, frame, count))
        cpu, begun = relay.cpu_s, time.perf_counter()
        sending.start()
        left = count * (len(frame) - 4)  # without the mask
        buffer = bytearray(4 * MIB)
        while left > 0:
            left -= harness.recv_into(buffer)
        took = time.perf_counter() - begun
        sending.join()
        return took, relay.cpu_s - cpu


def _send(sock: socket.socket, block: bytes, frame: bytes, count: int) -> None:
    a_block = len(block) // len(frame)
    while count > 0:
        sock.sendall(block if count >= a_block else frame * count)
        count -= a_block


def _client(relay: RelayUnderTest):  # type: ignore[no-untyped-def]
    from execserver.client import ExecServerClient
    from execserver.client.options import RemoteExecServerConnectArgs

    args = RemoteExecServerConnectArgs(url=relay.url, environment_id=ENVIRONMENT, token=relay.token)
    return ExecServerClient.connect_remote(args)
