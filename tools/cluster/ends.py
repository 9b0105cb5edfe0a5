"""Relay nodes, and executors that register with them, as processes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.cluster.asking import ask
from tools.cluster.service import Pause, Service, free_port

READY = "waiting for a harness"
# What a user has set for a real registration, or a proxy, must not lead them astray.
_NOT_OURS = ("CODEX_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


def clean_environment() -> dict[str, str]:
    """Return the variables of this process without those that lead elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_NOT_OURS)}


class Node:
    """One relay of a cluster, always on the same port."""

    def __init__(
        self,
        name: str,
        execserver: Sequence[str],
        words: Sequence[str],
        folder: Path,
        *,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        pause: Pause = time.sleep,
    ) -> None:
        """`words` are further options of `execserver relay`; `prefix` puts the process elsewhere."""
        self.name = name
        port = free_port() if host == "127.0.0.1" else 8080
        self.place = f"{host}:{port}"
        listen = ["--listen", f"http://{self.place}"]
        command = [*prefix, *execserver, "relay", *listen, "--node", name, *words]
        self.service = Service(name, command, folder, {**clean_environment(), **(variables or {})}, pause)

    def start(self, *, wait: bool = True) -> None:
        """Start it; `wait` until balancers may send everybody."""
        self.service.start(self.takes_all if wait else None)

    def takes_all(self) -> bool:
        """Tell whether balancers may send it everybody.  Raises Failed when it has ended."""
        self.service.must_run()
        return self.status_of("/lb") == 200

    def get(self, path: str) -> tuple[int, str]:
        """Return status and text of one of its pages; status 0 where nobody answers."""
        answer = ask(self.place, path)
        return answer.status, answer.body.decode()

    def status_of(self, path: str) -> int:
        """Return the status of one of its pages; 0 where nobody answers."""
        return self.get(path)[0]

    def figure(self, name: str) -> float:
        """Return a figure of its metrics page by its full name; 0 where it is not there."""
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        return 0.0


class Executor:
    """A machine behind the relay: an `execserver --remote`, or another program with the same options."""

    def __init__(
        self,
        execserver: Sequence[str],
        url: str,
        environment_id: str,
        token: str,
        folder: Path,
        *,
        name: str | None = None,
        home: Path | None = None,
        pause: Pause = time.sleep,
    ) -> None:
        self.environment_id = environment_id
        self.token = token
        words = ["--remote", url, "--environment-id", environment_id]
        home = home or folder
        variables = {
            **clean_environment(),
            "CODEX_HOME": str(home),
            "CODEX_API_KEY": token,
            "EXECSERVER_LOG": "info",
        }
        self.service = Service(name or environment_id, [*execserver, *words], folder, variables, pause)

    def is_ready(self) -> bool:
        """Tell whether it has been connected.  Raises Failed when it has ended."""
        self.service.must_run()
        return self.service.says(READY)
