"""A server under measurement: started as a child on its own core, ended by its pid."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import subprocess
import tempfile
import time
from types import TracebackType

_START_LIMIT_S = 300.0  # under valgrind, on a machine that does other things too
_STOP_LIMIT_S = 10.0


class StartFailed(Exception):
    """The server printed no URL."""


class Server:
    """One running server; the context manager ends it."""

    def __init__(self, name: str, command: str, cpus: set[int] | None) -> None:
        self.name = name
        self._home = tempfile.mkdtemp(prefix="bench-home-")
        own = os.sched_getaffinity(0)
        # Set before the start, because threads and children take over what they are born with.
        os.sched_setaffinity(0, cpus or own)
        try:
            self._process = subprocess.Popen(
                shlex.split(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "CODEX_HOME": self._home},
            )
        finally:
            os.sched_setaffinity(0, own)
        try:
            self.url = self._read_url()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    def stop(self) -> None:
        """End the server, first politely."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def _read_url(self) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + _START_LIMIT_S
        line = b""
        while not line.endswith(b"\n"):
            left = max(0.0, deadline - time.monotonic())
            readable, _, _ = select.select([self._process.stdout], [], [], left)
            piece = os.read(self._process.stdout.fileno(), 256) if readable else b""
            if not piece:
                raise StartFailed(f"{self.name} printed no URL")
            line += piece
        return line.decode().strip()
