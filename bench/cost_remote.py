"""The costs of remote mode: what a request through a relay costs the executor, and what it costs the relay.

A row of `EXECUTOR` or `RELAY` gets the URL of a relay with a token in its user part.  Behind the relay is one
executor of ours; whichever of the two is counted runs under the counting tool.  Both ends of a stream wait
longer with acknowledgements of their own (`patient_program`).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.patient_program import wait_longer
from bench.relay_ends import ENVIRONMENT, Executor, RelayUnderTest

EXECUTOR, RELAY = "executor", "relay"
PROGRAM = [sys.executable, "-m", "execserver"]
_PATIENT = [sys.executable, "-m", "bench.patient_program"]


class RemoteEnds:
    """A running relay with its executor; `url` and `pid` are as those of a server."""

    def __init__(self, relay: RelayUnderTest, pid: int) -> None:
        self.url = relay.url.replace("//", f"//{relay.token}@", 1)
        self.pid = pid


@contextmanager
def serving_remote(subject: str, counted: Sequence[str]) -> Iterator[RemoteEnds]:
    """Start both ends, the one of `subject` by the words of `counted`."""
    relay_program, executor_program = (counted, _PATIENT) if subject == RELAY else (PROGRAM, patient(counted))
    wait_longer()  # the harness is this process
    with (
        tempfile.TemporaryDirectory(prefix="bench-home-") as home,
        RelayUnderTest(relay_program, None) as relay,
        Executor(relay, executor_program, home) as executor,
    ):
        yield RemoteEnds(relay, relay.pid if subject == RELAY else executor.pid)


def patient(program: Sequence[str]) -> list[str]:
    """Return what runs the program of ours at the end of a command, if one is there, more patiently."""
    ours = list(program[-len(PROGRAM) :]) == PROGRAM
    return [*program[: -len(PROGRAM)], *_PATIENT] if ours else list(program)


def info(url: str, folder: Path, times: int) -> None:
    """Ask for the description of the machine."""
    with _client(url) as client:
        for _ in range(times):
            client.call("environment/info")


def metadata(url: str, folder: Path, times: int) -> None:
    """Ask for one file's metadata."""
    (folder / "small").write_bytes(b"x")
    with _client(url) as client:
        for _ in range(times):
            client.call("fs/getMetadata", {"path": (folder / "small").as_uri()})


def key(url: str, folder: Path, times: int) -> None:
    """Write a byte to `cat` on a terminal, and have its echo."""
    with _client(url) as client:
        process = client.start(["/bin/cat"], tty=True, cwd=str(folder))
        events = iter(process)
        for _ in range(times):
            process.write(b"x")
            next(events)
        process.terminate()


def initialize(url: str, folder: Path, times: int) -> None:
    """Ask the registry, connect, shake hands, initialize, and leave."""
    for _ in range(times):
        _client(url).close()


def _client(url: str) -> Any:
    from execserver.client import ExecServerClient
    from execserver.client.options import RemoteExecServerConnectArgs

    parts = urlsplit(url)
    args = RemoteExecServerConnectArgs(
        url=f"http://127.0.0.1:{parts.port}", environment_id=ENVIRONMENT, token=str(parts.username)
    )
    return ExecServerClient.connect_remote(args)
