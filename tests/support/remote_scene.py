"""Our executor in a process, our relay in another, and proxies that can cut what runs between them and us."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import gevent

from execserver.client import (
    ExecServerClient,
    ExecServerClientConnectOptions,
    Output,
    RemoteExecServerConnectArgs,
    RemoteProcess,
)
from execserver.client.relay.transport import RelayTransport
from tests.client.cutting_proxy import CuttingProxy
from tests.support.relay_process import ENVIRONMENT, RelayProcess, program
from tests.support.server_process import base_environment, interrupts_not_ignored
from tests.support.waiting import wait_until

WAIT_S = 30.0


class Executor:
    """The executor's process, as upgrades want it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def errors(self) -> str:
        """Return what it has written to stderr so far."""
        return self.log.read_text(errors="replace")


class RemoteScene:
    """A registered executor, reached through `harness_way`; it reaches the relay through `executor_way`."""

    def __init__(self) -> None:
        self.keeps_state = True
        self._folder = tempfile.TemporaryDirectory(prefix="remote-")
        self.folder = Path(self._folder.name)
        self.relay = self._start_relay("http://127.0.0.1:0")
        self.token = self.relay.token()
        self.executor_way = CuttingProxy(self.relay.url)
        self.harness_way = CuttingProxy(self.relay.url)
        self.executor_way.__enter__()
        self.harness_way.__enter__()
        self._log = (self.folder / "executor.log").open("w+b")
        command = [*program(), "--remote", _http(self.executor_way.url), "--environment-id", ENVIRONMENT]
        variables = base_environment() | {"CODEX_HOME": str(self.folder), "CODEX_API_KEY": self.token}
        with interrupts_not_ignored():
            self.executor = subprocess.Popen(
                command, env=variables, stdout=subprocess.DEVNULL, stderr=self._log
            )
        try:
            self.until(lambda: b"waiting for a harness" in self.log())
        except BaseException:
            self.close()
            raise

    def _start_relay(self, listen: str) -> RelayProcess:
        words = ("--state", str(self.folder / "state.db")) if self.keeps_state else ()
        limits = {"drain_s": 0, "close_timeout_s": 0.2}
        return RelayProcess(*words, listen=listen, limits=limits, folder=self.folder)

    def restart_relay(self, ending: signal.Signals, *, keeps_state: bool = True) -> None:
        """End the relay in this way and start another one in its place, which may know nothing."""
        self.keeps_state = keeps_state
        listen = self.relay.url
        self.relay.process.send_signal(ending)
        self.until(lambda: self.relay.process.poll() is not None)
        self.relay.kill()
        self.relay = self._start_relay(f"http://127.0.0.1:{urlsplit(listen).port}")

    @property
    def running(self) -> Executor:
        """The executor."""
        return Executor(self.executor, Path(self._log.name))

    def log(self) -> bytes:
        """Return what the executor has written to stderr."""
        return Path(self._log.name).read_bytes()

    def connect(self) -> ExecServerClient:
        """Return a new client."""
        return ExecServerClient.connect_remote(
            RemoteExecServerConnectArgs(
                url=_http(self.harness_way.url),
                environment_id=ENVIRONMENT,
                token=self.token,
                options=ExecServerClientConnectOptions(connect_timeout=20.0),
            )
        )

    def until(self, condition: object) -> None:
        """Wait while this program's own greenlets go on."""
        assert callable(condition)
        wait_until(condition, WAIT_S, pause=gevent.sleep)

    def close(self) -> None:
        """End everything."""
        self.executor.send_signal(signal.SIGTERM)
        try:
            self.executor.wait(20)
        except subprocess.TimeoutExpired:
            self.executor.kill()
            self.executor.wait()
        self._log.close()
        for way in (self.executor_way, self.harness_way):
            way.__exit__()
        self.relay.stop()
        self._folder.cleanup()

    def __enter__(self) -> RemoteScene:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def is_reliable(client: ExecServerClient) -> bool:
    """Tell whether a client's stream outlives its WebSocket."""
    connection = client._session._connection
    assert connection is not None
    assert isinstance(connection._transport, RelayTransport)
    return connection._transport.is_reliable


def output(process: RemoteProcess) -> bytes:
    """Return all a process prints from now on."""
    return b"".join(event.data for event in process if isinstance(event, Output))


def _http(url: str) -> str:
    return url.replace("ws:", "http:", 1)
