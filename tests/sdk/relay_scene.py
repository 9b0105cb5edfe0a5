"""Our executor and our relay, each a process of its own, with a proxy before the relay that can cut."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from execserver.client.options import ExecServerClientConnectOptions, RemoteExecServerConnectArgs
from tests.support.cutting_proxy import CuttingProxy
from tests.support.relay_process import ENVIRONMENT, RelayProcess, program
from tests.support.server_process import base_environment, interrupts_not_ignored
from tests.support.waiting import wait_until

WAIT_S = 30.0
# Registry calls beyond any here: a test of lives connects faster than a relay lets one environment.  That it
# refuses these is tested elsewhere.
LIMITS = {"drain_s": 0, "close_timeout_s": 0.2, "connect_wait_s": 0.3, "calls_per_s": 10_000}


class RelayScene:
    """A registered executor that clients reach through `way`.  Owns everything; every wait has a limit."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sdk-relay-")
        self.folder = Path(self._folder.name)
        self.relay = RelayProcess(folder=self.folder, limits=LIMITS)
        self.token = self.relay.token()
        self.way = CuttingProxy(self.relay.url)
        self._log = (self.folder / "executor.log").open("w+b")
        self.executor = self._start_executor()

    def args(self, token: str | None = None) -> RemoteExecServerConnectArgs:
        """Return what a client connects with."""
        return RemoteExecServerConnectArgs(
            url=self.url,
            environment_id=ENVIRONMENT,
            token=token or self.token,
            options=ExecServerClientConnectOptions(connect_timeout=20.0),
        )

    @property
    def url(self) -> str:
        """The registry's address, by the way that can be cut."""
        return self.way.url.replace("ws:", "http:", 1)

    @property
    def box(self) -> str:
        """What a person calls it."""
        return f"relay:{self.url}/{ENVIRONMENT}"

    def restart_relay(self) -> None:
        """Kill the relay and start another one in its place, which knows nothing."""
        port = urlsplit(self.relay.url).port
        self.relay.kill()
        self.relay = RelayProcess(listen=f"http://127.0.0.1:{port}", folder=self.folder, limits=LIMITS)

    def replace_executor(self) -> None:
        """Kill the executor and start another one, with other keys."""
        self.executor.kill()
        self.executor.wait(WAIT_S)
        self.executor = self._start_executor()

    def _start_executor(self) -> subprocess.Popen[bytes]:
        begun = len(self._read_log())
        command = [*program(), "--remote", self.relay.url, "--environment-id", ENVIRONMENT]
        variables = base_environment() | {"CODEX_HOME": str(self.folder), "CODEX_API_KEY": self.token}
        with interrupts_not_ignored():
            executor = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=self._log)
        try:
            wait_until(lambda: b"waiting for a harness" in self._read_log()[begun:], WAIT_S)
        except BaseException:
            executor.kill()
            executor.wait(WAIT_S)
            raise
        return executor

    def _read_log(self) -> bytes:
        return Path(self._log.name).read_bytes()

    def close(self) -> None:
        """End everything."""
        self.executor.terminate()
        try:
            self.executor.wait(20)
        except subprocess.TimeoutExpired:
            self.executor.kill()
            self.executor.wait(WAIT_S)
        self._log.close()
        self.way.stop()
        self.relay.process.send_signal(signal.SIGTERM)
        self.relay.stop()
        self._folder.cleanup()

    def __enter__(self) -> RelayScene:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait while the event loop goes on."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)
