"""Starts a Redis or Valkey of the test's own, which keeps nothing on disk.

The program is the distribution's; where it is missing the test is left out and says so (`.ci/run` brings it).
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile

import pytest

from execserver.relay.engine.address import Credentials, EngineAddress
from execserver.relay.engine.client import Engine
from execserver.relay.engine.line import Dialer
from execserver.relay.engine.scripts import ALL
from tests.support.server_process import interrupts_not_ignored
from tests.support.waiting import wait_until

WAIT = 20.0


def find_engine() -> str | None:
    """Return the path of the server, if there is one."""
    return next(filter(None, map(shutil.which, ("redis-server", "valkey-server"))), None)


def engine_program() -> str:
    """Return the path of the server; leaves the test out where there is none."""
    found = find_engine()
    if found is None:
        pytest.skip("there is no redis-server (Debian: apt-get install redis-server)")
    return found


class EngineProcess:
    """A running engine; owns its process and its folder."""

    def __init__(self, *words: str, port: int | None = None) -> None:
        """Start it; `words` are further arguments, such as `--requirepass`."""
        self.port = port or free_port()
        program = engine_program()  # first: a test that is left out must leave nothing
        self._folder = tempfile.TemporaryDirectory(prefix="engine-")
        with interrupts_not_ignored():
            self.process = subprocess.Popen(
                [
                    *(program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""),
                    *("--appendonly", "no", "--dir", self._folder.name),
                    *("--repl-diskless-sync-delay", "0", *words),
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
            )
        try:
            wait_until(self._answers, WAIT)
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """Its URL."""
        return f"redis://127.0.0.1:{self.port}"

    def _answers(self) -> bool:
        assert self.process.poll() is None, "the engine has ended"
        try:
            return self.ask("PING").startswith((b"+PONG", b"-NOAUTH", b"-LOADING"))
        except OSError:
            return False

    def ask(self, *words: str) -> bytes:
        """Give it a command by a connection of its own; return the beginning of the reply as it is."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=WAIT) as sock:
            parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
            sock.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
            return sock.recv(65536)

    def dialer(self, credentials: Credentials | None = None) -> Dialer:
        """Return what connects to it."""
        address = EngineAddress(False, (("127.0.0.1", self.port),))
        return Dialer(address, credentials or Credentials(), {})

    def connected(self) -> Engine:
        """Return a client that is connected; the caller closes it."""
        engine = Engine(self.dialer(), ALL, lambda result: None)
        engine.start()
        return engine

    def pause(self) -> None:
        """Have it hang: connections stay, nothing answers."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """End a pause."""
        self.process.send_signal(signal.SIGCONT)

    def wait_for_replica(self) -> None:
        """Wait until a replica has everything."""
        wait_until(lambda: b"state=online" in self.ask("INFO", "replication"), WAIT)

    def kill(self) -> None:
        """Kill it, as a crash would."""
        self.process.kill()
        self.process.wait(WAIT)

    def stop(self) -> None:
        """Kill it, and remove its folder."""
        self.kill()
        self._folder.cleanup()

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def free_port() -> int:
    """Return a port of loopback that nobody has at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port
