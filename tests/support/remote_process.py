"""A server in remote mode, in a process of its own, and the relay it is registered at."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Sequence

import gevent

from execserver.client import ExecServerClient, ExecServerClientConnectOptions, RemoteExecServerConnectArgs
from tests.support.relay import Relay
from tests.support.server_process import OURS, SETTINGS_VARIABLE, base_environment, interrupts_not_ignored
from tests.support.source import ROOT
from tests.support.waiting import wait_until

API_KEY = "sk-of-the-executor-1"


class RemoteProcess:
    """The process; waits in the event loop, so that a relay beside it goes on."""

    def __init__(
        self,
        url: str,
        arguments: Sequence[str] = ("--environment-id", "env-1"),
        *,
        env: dict[str, str] | None = None,
        settings: dict[str, object] | None = None,
        argv: Sequence[str] = OURS.argv,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        """Start it; `env` goes over the few variables a server inherits, an empty value takes one away."""
        variables = base_environment() | {"CODEX_API_KEY": API_KEY, **(env or {})}
        if settings:
            variables[SETTINGS_VARIABLE] = json.dumps(settings)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `release`
        with interrupts_not_ignored():
            self.process = subprocess.Popen(
                [*argv, "--remote", url, *arguments],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={name: value for name, value in variables.items() if value},
                cwd=ROOT,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def errors(self) -> str:
        """Return what it has written to stderr so far."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def says(self, text: str) -> None:
        """Wait until a text is on its stderr."""

        def is_there() -> bool:
            return text in self.errors() or self.process.poll() is not None

        wait_until(is_there, 20, pause=gevent.sleep)
        assert text in self.errors(), self.errors()

    def wait(self) -> int:
        """Wait for its end and return its exit code."""
        wait_until(lambda: self.process.poll() is not None, 20, pause=gevent.sleep)
        return int(self.process.returncode)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it; return its exit code."""
        self.process.send_signal(number)
        return self.wait()

    def release(self) -> None:
        """End it in any case, and close what the test holds."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._errors.close()

    def __enter__(self) -> RemoteProcess:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()


def connect(relay: Relay, options: ExecServerClientConnectOptions | None = None) -> ExecServerClient:
    """Connect a client through a relay."""
    return ExecServerClient.connect_remote(
        RemoteExecServerConnectArgs(
            url=relay.url,
            environment_id="env-1",
            token="of-the-harness",
            options=options or ExecServerClientConnectOptions(),
        )
    )
