"""What a start costs until somebody can use the server: until its URL, and until it asks the registry.

The kernel ends the server in the very moment in which that is reached: with SIGTERM, which it obeys at once
as long as it is not all there.  So no other process has to be quick, and the figures are as repeatable as all
of `bench cost`.  A command of the client is counted whole.  Instructions only.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from bench.server import Server

_PATIENCE_S = 400.0
_REPEATS = 3
_KILO = 1000
_PROGRAM = [sys.executable, "-m", "execserver"]


class StartRow(NamedTuple):
    """One start; `asks` says that it is over when the registry is asked, and else with the URL.

    With `is_client` it is a command of the client, and over at its end.
    """

    name: str
    title: str
    asks: bool = False
    is_client: bool = False


STARTS = [
    StartRow("client_true", "`run -- true`, whole", is_client=True),
    StartRow("to_url", "start to URL"),
    StartRow("to_registration", "`--remote` to registration", asks=True),
]


def measure(row: StartRow, place: Path) -> float | None:
    """Return thousands of instructions, the median of some starts; None where there is no valgrind."""
    if not shutil.which("valgrind"):
        return None
    if row.is_client:
        return _client(place) / _KILO
    report = place / "callgrind-of-a-start"
    counting = ["valgrind", "--tool=callgrind", "-q", f"--callgrind-out-file={report}.%p", "--"]
    _ended_when_reached(row, place, [])  # compiles what is imported
    pids = [_ended_when_reached(row, place, counting) for _ in range(_REPEATS)]
    return statistics.median(_counted(Path(f"{report}.{pid}")) for pid in pids) / _KILO


def _environment(place: Path) -> dict[str, str]:
    # Compiled modules in a place of their own: whether the source has them would be a matter of luck.
    # A seed, so that sets have the same order each time.
    env = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPYCACHEPREFIX": str(place / "compiled")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


def _client(place: Path) -> float:
    env = _environment(place)
    report = place / "callgrind-of-a-command"
    counting = ["valgrind", "--tool=callgrind", "-q", f"--callgrind-out-file={report}", "--"]
    figures = []
    with Server("ours", shlex.join([*_PROGRAM, "--listen", "ws://127.0.0.1:0"]), None) as server:
        for prefix in ([], *[counting] * _REPEATS):
            subprocess.run(
                [*prefix, *_PROGRAM, "run", server.url, "--", "true"],
                stdin=subprocess.DEVNULL,
                env=env,
                timeout=_PATIENCE_S,
                check=True,
            )
            if prefix:
                figures.append(_counted(report))
    return statistics.median(figures)


def _counted(report: Path) -> float:
    found = re.search(r"^(?:totals|summary): (\d+)", report.read_text(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def _ended_when_reached(row: StartRow, place: Path, prefix: list[str]) -> int:
    """Start a server that ends when it has got as far as the row says; return its pid."""
    # A home without files.
    env = {**_environment(place), "CODEX_API_KEY": "a key for a start", "HOME": str(place)}
    with socket.create_server(("127.0.0.1", 0)) as registry:
        remote = ["--remote", f"http://127.0.0.1:{registry.getsockname()[1]}", "--environment-id", "e"]
        options = remote if row.asks else ["--listen", "ws://127.0.0.1:0"]
        with subprocess.Popen(
            [*prefix, *_PROGRAM, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
        ) as server:
            assert server.stdout is not None
            _signalling(registry.fileno() if row.asks else server.stdout.fileno(), server.pid)
            try:
                server.wait(_PATIENCE_S)
            finally:
                server.kill()
    return server.pid


def _signalling(descriptor: int, pid: int) -> None:
    """Have the kernel end a process when something arrives at a descriptor of ours."""
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, pid)
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
