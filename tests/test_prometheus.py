"""A real Prometheus reads a real server: the dashboard has data, and every alert rule fires."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.peer import Peer, RemoteError
from tests.support.running import run
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
WAIT_S = 45.0
PROGRAM = shutil.which("prometheus")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(PROGRAM is None, reason="there is no prometheus (Debian: apt-get install prometheus)"),
]

CONFIG = """
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 500ms}
rule_files: [alerts.yml]
scrape_configs:
  - job_name: execserver
    static_configs: [{targets: ["%s", "%s"]}]
"""
# What a test cannot wait for, or does not want: minutes, gigabytes and thousands of descriptors.
SOONER = (
    (re.compile(r"for: \d+m"), "for: 1s"),
    (re.compile(r"\[5m\]"), "[30s]"),
    (re.compile(r"> 1e9"), "> 1e6"),
    (re.compile(r"> 15000"), "> 1"),
    (re.compile(r"> 0\.1$", re.MULTILINE), "> 0"),
)


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


class Prometheus:
    """A running Prometheus with its answers."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/api/v1"

    def _data(self, path: str, **query: str) -> Any:
        url = f"{self._url}/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.loads(answer.read())["data"]

    def is_ready(self) -> bool:
        """Tell whether it answers."""
        try:
            return bool(self._data("targets"))
        except OSError:
            return False

    def found(self, expression: str) -> int:
        """Return how many series an expression has now."""
        return len(self._data("query", query=expression)["result"])

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        alerts = self._data("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


class Watched(NamedTuple):
    """A server, and where it serves its metrics."""

    peer: Peer
    address: str

    def ask_in_vain(self) -> None:
        """Have a request fail."""
        with pytest.raises(RemoteError):
            self.peer.call("process/read", {"processId": "none"})


@pytest.fixture
def watched() -> Iterator[Watched]:
    address = free_address()
    with ServerProcess(options=("--metrics", address)) as server, server.connect() as peer:
        peer.open_session()
        yield Watched(peer, address)


@pytest.fixture
def prometheus(watched: Watched, tmp_path: Path) -> Iterator[Prometheus]:
    rules = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    for found, sooner in SOONER:
        rules, times = found.subn(sooner, rules)
        assert times
    (tmp_path / "alerts.yml").write_text(rules)
    (tmp_path / "prometheus.yml").write_text(
        CONFIG % (watched.address, free_address())
    )  # nobody listens there
    address = free_address()
    with subprocess.Popen(
        [
            *(str(PROGRAM), f"--config.file={tmp_path}/prometheus.yml", f"--web.listen-address={address}"),
            f"--storage.tsdb.path={tmp_path}/data",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            running = Prometheus(address)
            wait_until(running.is_ready, WAIT_S)
            yield running
        finally:
            process.terminate()


def expressions() -> list[str]:
    """Return the queries of the dashboard, with its variables filled in."""
    board = json.loads((DEPLOY / "grafana" / "execserver.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [each.replace("$instance", ".*").replace("$__rate_interval", "30s") for each in asked]


def test_the_dashboard_has_data_of_a_running_server(prometheus: Prometheus, watched: Watched) -> None:
    run(watched.peer, "p", "exit 3")
    asked = [each for each in expressions() if "denials" not in each]  # nothing is denied here
    assert len(asked) == 10
    for expression in asked:
        wait_until(lambda: prometheus.found(expression) > 0, WAIT_S)  # noqa: B023
    cause = 'exec_server_processes_finished_total{result="error",cause="exited"} == 1'
    wait_until(lambda: prometheus.found(cause) == 1, WAIT_S)


def test_every_rule_fires_in_a_running_prometheus(prometheus: Prometheus, watched: Watched) -> None:
    names = set(re.findall(r"alert: (\w+)", (DEPLOY / "prometheus" / "alerts.yml").read_text()))
    assert len(names) == 5
    fired: set[str] = set()

    def all_have_fired() -> bool:
        watched.ask_in_vain()
        fired.update(prometheus.firing())
        return fired == names

    wait_until(all_have_fired, WAIT_S)
