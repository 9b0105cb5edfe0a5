"""Starts an exec-server as a process of its own: ours, or the reference binary.

The tests that use it know the server only from outside: its command line, its one line on stdout, its exit
code. A `ServerProcess` owns its child and ends it by pid in `stop`, which every `with` block does.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.feed import Feed, whole
from tests.support.stdio_peer import StdioPeer
from tests.support.ws_peer import WsPeer

START_WAIT = 60.0
STOP_WAIT = 30.0
SETTINGS_VARIABLE = "EXECSERVER_SETTINGS"
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "SHELL", "USER", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Flavour:
    """Which server to start: its command, what it is called, and how it ends on SIGTERM."""

    name: str
    argv: tuple[str, ...]
    exit_on_terminate: int
    env: dict[str, str] = field(default_factory=dict)

    @property
    def is_reference(self) -> bool:
        """Tell the reference binary from ours."""
        return self.name != "ours"


PROGRAM_VARIABLE = "EXECSERVER_PROGRAM"
"""Names a built program that stands for ours; without it our source is started."""

OURS = Flavour(
    "ours",
    (os.environ[PROGRAM_VARIABLE],)
    if PROGRAM_VARIABLE in os.environ
    else (sys.executable, "-m", "execserver"),
    0,
)


def base_environment() -> dict[str, str]:
    """Return the few variables of the test run that a server inherits."""
    env = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    root = str(Path(__file__).resolve().parents[2])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (root, env.get("PYTHONPATH"))))
    return env


@contextmanager
def interrupts_not_ignored() -> Iterator[None]:
    """Let a child start with default actions for the signals a background job ignores."""
    ignored = [n for n in (signal.SIGINT, signal.SIGQUIT) if signal.getsignal(n) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


class ServerProcess:
    """A running server and the end of its standard streams that the test holds."""

    def __init__(
        self,
        flavour: Flavour = OURS,
        *,
        listen: str = "ws://127.0.0.1:0",
        env: dict[str, str] | None = None,
        settings: dict[str, object] | None = None,
        cwd: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """Start the server and, for a `ws://` URL, wait for its line. `env` replaces `base_environment()`."""
        self.flavour = flavour
        self._end_expected = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `release`
        variables = {**(base_environment() if env is None else env), **flavour.env}
        if settings and not flavour.is_reference:
            variables[SETTINGS_VARIABLE] = json.dumps(settings)
        with interrupts_not_ignored():
            self.process = subprocess.Popen(
                [*flavour.argv, "--listen", listen, *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=variables,
                cwd=cwd,
                bufsize=0,
            )
        self.url = ""
        if listen.startswith(("ws", "unix")):
            try:
                self.url = self._read_url()
            except BaseException:
                self.kill()
                raise

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self.process.pid

    def _read_url(self) -> str:
        assert self.process.stdout is not None
        line = b""
        deadline = time.monotonic() + START_WAIT
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if not select.select([self.process.stdout], [], [], max(0.0, left))[0]:
                raise AssertionError(f"no URL within {START_WAIT} s; stderr: {self.errors()}")
            piece = self.process.stdout.read(1)
            if not piece:
                raise AssertionError(f"the server ended before it printed its URL; stderr: {self.errors()}")
            line += piece
        return line.decode().rstrip("\n")

    def connect(self, feed: Feed = whole) -> WsPeer:
        """Open a WebSocket to this server."""
        return WsPeer.connect(self.url, feed)

    def stdio(self, feed: Feed = whole) -> StdioPeer:
        """Return a peer on this server's stdin and stdout. Call once."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return StdioPeer(os.dup(self.process.stdin.fileno()), os.dup(self.process.stdout.fileno()), feed)

    def close_stdin(self) -> None:
        """Close the test's own end of the server's stdin."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def errors(self) -> str:
        """Return what the server has written to stderr so far."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def wait(self, timeout: float = STOP_WAIT) -> int:
        """Wait for the server to end; return its exit code, negative for a signal."""
        self._end_expected = True
        return self.process.wait(timeout)

    def signal(self, number: signal.Signals) -> None:
        """Send one signal to the server, which may end it."""
        self._end_expected = True
        self.process.send_signal(number)

    def stop(self) -> int:
        """Ask the server to end, wait, return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_WAIT)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """End the server the hard way and release its streams."""
        self.process.kill()
        self.process.wait(STOP_WAIT)
        self.release()

    def release(self) -> None:
        """Close the streams of a server that has ended."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self._errors.close()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, exc_type: object, *rest: object) -> None:
        ended = self.process.poll()
        try:
            code = self.stop()
            if ended is not None and not self._end_expected:
                raise AssertionError(f"the server ended by itself with {ended}: {self.errors()}")
            if exc_type is None and ended is None:
                assert code == self.flavour.exit_on_terminate, self.errors()
        finally:
            self.release()
