"""What `build.py bench ops` measures: the cost of limits, audit log, recorder, upgrade and metrics.

A row is a function from the program and a size to the figures of one round.  Costs are differences: the same
work once with the thing and once without, in turn, each by a server of its own.
"""

from __future__ import annotations

import os
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from bench.client import Client, Json
from bench.server import Server

Figures = dict[str, float]
LISTEN: Final = "--listen ws://127.0.0.1:0"
_LIMITS: Final[Json] = {"memoryBytes": 256 << 20, "processes": 64, "wallMs": 60_000, "enforce": "best"}
_TICKER: Final = "import time\nwhile True: print('line', flush=True); time.sleep(0.002)"
_SETTLE_S: Final = 1.0  # after a start, and after an upgrade: what is done later is no part of the figure
_UPGRADE_S: Final = 120.0


class Row(NamedTuple):
    """One measurement: its figures' titles with their units and targets, and its two sizes."""

    name: str
    figures: dict[str, tuple[str, float]]
    measure: Callable[[str, int], Figures]
    size: int
    quick: int


def limited(program: str, size: int) -> Figures:
    """Start `true` with limits and without, in turn."""
    took: dict[bool, list[float]] = {True: [], False: []}
    with Server("ours", _command(program), None) as server, Client(server.url) as client:
        for number in range(2 * size):
            with_limits = number % 2 == 0
            began = time.perf_counter()
            _start(client, f"p{number}", ["/bin/true"], **({"limits": _LIMITS} if with_limits else {}))
            took[with_limits].append((time.perf_counter() - began) * 1000)
            client.wait_for("process/closed", f"p{number}")
    return {LIMITED: statistics.median(took[True]) - statistics.median(took[False])}


def audited(program: str, size: int) -> Figures:
    """Change a file with an audit log and without."""

    def work(options: str) -> float:
        with (
            tempfile.NamedTemporaryFile() as file,
            Server("ours", _command(program, options), None) as server,
        ):
            params = {"path": f"file://{file.name}", "dataBase64": ""}
            with Client(server.url) as client:
                client.call("fs/writeFile", params)
                before = cpu_s(server.pid)
                for _ in range(size):
                    client.call("fs/writeFile", params)
                return cpu_s(server.pid) - before

    with tempfile.TemporaryDirectory() as folder:
        more = work(f"--audit {folder}/audit") - work("")
    return {AUDITED: more / size * 1e6}


def recorded(program: str, size: int) -> Figures:
    """Take a flow of output that is recorded, and one that is not."""
    argv = ["/usr/bin/head", "-c", str(size), "/dev/zero"]
    with tempfile.TemporaryDirectory() as folder:
        command = _command(program, f"--audit {folder}/audit")
        used = {}
        for record in ("output", None):
            with Server("ours", command, None) as server, Client(server.url) as client:
                before = cpu_s(server.pid)
                _start(client, "p", argv, **({"record": record} if record else {}))
                while b'"process/closed"' not in client.receive():
                    pass
                used[record] = cpu_s(server.pid) - before
    return {RECORDED: (used["output"] - used[None]) / (size / (100 << 20)) * 100}


def upgraded(program: str, size: int) -> Figures:
    """Upgrade a server with that many processes; what two clients notice."""
    with Server("ours", _command(program), None) as server, Client(server.url) as client:
        for number in range(size - 1):
            script = "i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); done; exec sleep 1000"
            _start(client, f"p{number}", ["/bin/sh", "-c", script])
        _start(client, "ticker", [sys.executable, "-c", _TICKER])
        asking, following = Gaps(), Gaps()
        with Client(server.url) as other:
            threads = [
                threading.Thread(target=_ask, args=(other, asking)),
                threading.Thread(target=_follow, args=(client, following)),
            ]
            time.sleep(_SETTLE_S)
            for thread in threads:
                thread.start()
            try:
                time.sleep(_SETTLE_S)
                upgrade = [*shlex.split(program), "upgrade", "--pid", str(server.pid)]
                subprocess.run(upgrade, check=True, stdout=subprocess.DEVNULL, timeout=_UPGRADE_S)
                time.sleep(_SETTLE_S)
            finally:
                asking.stop()
                following.stop()
                for thread in threads:
                    thread.join()
    return {ASKED: asking.longest_ms, FOLLOWED: following.longest_ms}


def scraped(program: str, size: int) -> Figures:
    """Read the page of metrics of a server that has something to tell."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command, took = _command(program, f"--metrics {address}"), []
    with Server("ours", command, None) as server, Client(server.url) as client:
        for number in range(20):
            _start(client, f"p{number}", ["/bin/true"])
            client.wait_for("process/closed", f"p{number}")
        for _ in range(size):
            began = time.perf_counter()
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
                answer.read()
            took.append((time.perf_counter() - began) * 1000)
    return {SCRAPED: statistics.median(took)}


class Gaps:
    """The longest time between two events of a client."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self.stopped = False
        self._last = 0.0

    def event(self) -> None:
        """Note that something has come."""
        now = time.perf_counter()
        if self._last:
            self.longest_ms = max(self.longest_ms, (now - self._last) * 1000)
        self._last = now

    def stop(self) -> None:
        """Note no more."""
        self.stopped = True


def cpu_s(pid: int) -> float:
    """Return the processor time of a process's threads that live, in seconds, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _ask(client: Client, gaps: Gaps) -> None:
    while not gaps.stopped:
        client.call("environment/info", {})
        gaps.event()
        time.sleep(0.001)


def _follow(client: Client, gaps: Gaps) -> None:
    while not gaps.stopped:
        client.wait_for("process/output", "ticker")
        gaps.event()


def _start(client: Client, process_id: str, argv: list[str], **members: object) -> None:
    env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
    start: Json = {"processId": process_id, "argv": argv, "cwd": "file:///", "env": env, "tty": False}
    client.call("process/start", start | members)


def _command(program: str, options: str = "") -> str:
    return f"{program} {LISTEN} {options}"


LIMITED: Final = "start of `true`: with limits, more than without"
AUDITED: Final = "CPU of the audit log, a request"
RECORDED: Final = "CPU of the recorder at 100 MiB/s, of a core"
ASKED: Final = "upgrade with 100 processes: longest wait for an answer"
FOLLOWED: Final = "upgrade with 100 processes: longest wait for a line of output"
SCRAPED: Final = "page of metrics"

ROWS: Final = (
    Row("limited", {LIMITED: ("ms", 1.0)}, limited, 300, 20),
    Row("audited", {AUDITED: ("us", 20.0)}, audited, 20_000, 500),
    Row("recorded", {RECORDED: ("%", 10.0)}, recorded, 400 << 20, 32 << 20),
    Row("upgraded", {ASKED: ("ms", 150.0), FOLLOWED: ("ms", 150.0)}, upgraded, 100, 5),
    Row("scraped", {SCRAPED: ("ms", 2.0)}, scraped, 500, 20),
)
