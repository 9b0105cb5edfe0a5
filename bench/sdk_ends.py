"""The servers of `bench sdk`: ours, ours behind a relay, SWE-ReX's; and the workers that use them."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.relay_ends import ENVIRONMENT, Executor, RelayUnderTest
from bench.sdk_work import CPU, Figures
from bench.server import Server

ROOT = Path(__file__).resolve().parents[1]
_PEER_PINS = ROOT / "bench" / "requirements-swerex.txt"
GEVENT, ASYNCIO, SYNC, SWEREX = "gevent", "asyncio", "sync", "swerex"
WAYS = (GEVENT, ASYNCIO, SYNC, SWEREX)
_WORKER_LIMIT_S = 600
_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 10.0
# What a program pays before it can use a client.
_IMPORTS = {
    GEVENT: "from execserver.client import ExecServerClient",
    ASYNCIO: "from execserver_client import connect; connect",
    SYNC: "from execserver_client.sync import connect; connect",
    SWEREX: "from swerex.runtime.remote import RemoteRuntime",
}


class Missing(Exception):
    """Something that the measurement needs is not here; the text says what."""


class End(NamedTuple):
    """A server, and where its files may be put."""

    address: str
    token: str
    folder: Path


class Worker(NamedTuple):
    """The interpreter of a way; a row is measured in a process of its own."""

    way: str
    python: str

    def measure(self, row: str, end: End, here: Path, quick: bool) -> Figures:
        """Return the figures of one row.  Raises Missing with the reason where it fails."""
        with tempfile.TemporaryDirectory(dir=end.folder) as there:
            words = [row, end.address, end.token, str(here), there, "quick" if quick else "full"]
            done = self._run(["-m", f"bench.sdk_{self.way}", *words])
        figures: Figures = json.loads(done)
        cpu_s = figures.pop(CPU)
        return figures if self.way == SWEREX else {**figures, f"{row}, CPU": cpu_s}  # it does less of some

    def import_ms(self, times: int) -> float:
        """Return what an import costs beyond a start of the interpreter, the best of some."""
        statements = (_IMPORTS[self.way], "pass")
        self._run(["-c", statements[0]])  # the first one writes the byte code
        loaded, bare = (min(self._seconds(each) for _ in range(times)) for each in statements)
        return (loaded - bare) * 1000

    def _seconds(self, statement: str) -> float:
        begun = time.perf_counter()
        self._run(["-c", statement])
        return time.perf_counter() - begun

    def _run(self, words: list[str]) -> bytes:
        paths = os.pathsep.join((str(ROOT), str(ROOT / "sdk")))
        try:
            done = subprocess.run(
                [self.python, *words],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": paths},
                capture_output=True,
                timeout=_WORKER_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Missing(f"took more than {_WORKER_LIMIT_S} s") from None
        if done.returncode:
            raise Missing(done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:300] or "failed")
        return done.stdout


def peer_python(given: str | None) -> str:
    """Return an interpreter that has SWE-ReX; makes an environment for it once.  Raises Missing."""
    if given:
        return given
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "execserver-bench"
    digest = hashlib.sha256(_PEER_PINS.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = cache / f"swerex-{digest}"
    python = folder / "bin" / "python"
    if not (folder / "whole").exists():  # written last: an installation that was cut begins anew
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "-q", "-r", str(_PEER_PINS)],
        ):
            if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
                raise Missing("SWE-ReX cannot be installed: name an interpreter that has it with --swerex")
        (folder / "whole").touch()
    return str(python)


@contextmanager
def ours(program: str, folder: Path) -> Iterator[End]:
    """Our server on a port of this machine."""
    with Server("ours", f"{program} --listen ws://127.0.0.1:0", None) as server:
        yield End(server.url, "", folder)


@contextmanager
def relayed(program: str, folder: Path) -> Iterator[End]:
    """Our server behind our relay."""
    with RelayUnderTest([program], None) as relay, Executor(relay, [program], str(folder)):
        yield End(f"relay:{relay.url}/{ENVIRONMENT}", relay.token, folder)


@contextmanager
def swerex(python: str, folder: Path) -> Iterator[End]:
    """SWE-ReX's server on a port of this machine.  Raises Missing."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    words = ["-m", "swerex.server", "--host", "127.0.0.1", "--port", str(port), "--auth-token", token]
    process = subprocess.Popen(
        [python, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # its commands stay in its group, and end with it
    )
    try:
        deadline = time.monotonic() + _START_LIMIT_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Missing("SWE-ReX's server does not start")
            time.sleep(0.05)
        yield End(f"http://127.0.0.1:{port}", token, folder)
    finally:
        _end_group(process)


def _end_group(leader: subprocess.Popen[bytes]) -> None:
    try:
        leader.terminate()
        leader.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        pass  # it waits for a command
    finally:
        try:
            os.killpg(leader.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # nothing is left
        leader.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
