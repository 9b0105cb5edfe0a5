"""One process of a cluster: starting it, waiting until it answers, pausing, killing and ending it.

A `Service` owns its child and the file of what it says.  Waits take a `pause`, so that a program with
greenlets lets them go on; without one they block.  What a machine lacks is raised as `Problem`, with the
package that holds it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools.problems import Failed, Problem

Pause = Callable[[float], object]

START_S = 30.0
STOP_S = 20.0
_LAST_WORDS_BYTES = 3000
_POLL_S = 0.02
_PORTS = (10_000, 32_000)
# Program -> Debian's package that holds it.
PACKAGES = {
    "redis-server": "redis-server",
    "haproxy": "haproxy",
    "nginx": "nginx",
    "ip": "iproute2",
}
_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"  # not on the search path of ordinary users


def program(name: str) -> str:
    """Return where a program is.  Raises Problem, with the cure."""
    path = shutil.which(name) or shutil.which(name, path=_FOLDERS)
    if path is None:
        package = PACKAGES[name]
        raise Problem(f"there is no `{name}` on this machine", f"install it: apt-get install {package}")
    return path


def wait_for(
    met: Callable[[], object], what: str, seconds: float = START_S, pause: Pause = time.sleep
) -> None:
    """Wait until a condition is met.  Raises Failed, which says what was waited for."""
    deadline = time.monotonic() + seconds
    while not met():
        if time.monotonic() > deadline:
            raise Failed(f"after {seconds:g} s still not: {what}")
        pause(_POLL_S)


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is free now, and that the kernel gives nobody who asks for any."""
    while True:
        port = random.randrange(*_PORTS)
        with socket.socket() as sock:
            try:
                sock.bind((host, port))
            except OSError:
                continue
            return port


def accepts(host: str, port: int) -> bool:
    """Tell whether somebody listens there."""
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True


class Service:
    """A process, started again as often as asked; `log` is the file of all it has said."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        variables: Mapping[str, str] | None = None,
        pause: Pause = time.sleep,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.command = list(command)
        self.pause = pause
        self._cwd = cwd
        self._variables = dict(os.environ if variables is None else variables)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return None if self._process is None else self._process.poll()

    def start(self, ready: Callable[[], object] | None = None) -> None:
        """Start it, in a session of its own, and wait until it is ready.  Raises Failed."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._variables,
                cwd=self._cwd,
                start_new_session=True,
            )
        if ready is not None:
            self.wait_for(ready, "ready")

    def wait_for(self, met: Callable[[], object], what: str, seconds: float = START_S) -> None:
        """Wait until something is so, and end it when that does not come.  Raises Failed."""

        def is_so() -> object:
            self.must_run()
            return met()

        try:
            wait_for(is_so, f"{self.name} is {what}", seconds, self.pause)
        except Failed:
            self.kill()
            raise

    def must_run(self) -> None:
        """Raise Failed, with its last words, if it has ended."""
        if self.status is not None:
            raise Failed(f"{self.name} ended with status {self.status}{self.last_words()}")

    def says(self, text: str) -> bool:
        """Tell whether a text is in what it has said."""
        return self.log.exists() and text.encode() in self.log.read_bytes()

    def last_words(self) -> str:
        """Return what it said last, each line marked with its name."""
        said = self.log.read_bytes()[-_LAST_WORDS_BYTES:] if self.log.exists() else b""
        return "".join(f"\n  {self.name} | {line}" for line in said.decode("utf-8", "replace").splitlines())

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self._process is not None:
            self._process.send_signal(number)

    def freeze(self) -> None:
        """Let it do nothing until `thaw`; the kernel goes on for it."""
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """End it the hard way."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, seconds: float = STOP_S) -> int:
        """Ask it to end, and end it the hard way when it does not; return its exit status."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            self.wait(seconds)
        except Failed:
            self.kill()
        return self._process.wait()

    def wait(self, seconds: float = STOP_S) -> None:
        """Wait for its end.  Raises Failed."""
        wait_for(lambda: self.status is not None, f"{self.name} has ended", seconds, self.pause)
