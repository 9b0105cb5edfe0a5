"""The files of `deploy/` that watch servers: their figures exist, and the rules fire where they should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from execserver.access.identity import NOBODY
from execserver.protocol.envelope import Request
from execserver.services.reporting.metrics import ServerMetrics
from execserver.services.reporting.observers import Answered, Who

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "execserver.json"
FIGURE = re.compile(r"\b(?:exec_?server|process)_[a-z_]+\b")


def figures() -> set[str]:
    """Return the names of all figures on the page of a server."""
    gauges = dict.fromkeys(("execserver_sessions", "execserver_children"), ("", 1.0))
    metrics = ServerMetrics(lambda: gauges)
    metrics.answered(Answered(Request(1, "initialize"), Who("", NOBODY), "success", None, 0.1))
    names = set(re.findall(r"^# TYPE (\S+)", metrics.page().decode(), re.MULTILINE))
    return names | {f"{name}_bucket" for name in names}


@pytest.mark.parametrize("file", [RULES, DASHBOARD])
def test_figures_that_are_asked_for_are_on_the_page(file: Path) -> None:
    asked = set(FIGURE.findall(file.read_text()))
    assert len(asked) >= 4
    assert asked <= figures()


def test_the_dashboard_is_one_and_has_a_place_for_each_panel() -> None:
    board = json.loads(DASHBOARD.read_text())
    assert board["title"] == "execserver"
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places) == 8
    assert all(target["expr"] for panel in board["panels"] for target in panel["targets"])


@pytest.mark.parametrize("words", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_the_rules_fire_where_they_should(words: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    done = subprocess.run(
        [promtool, *words], cwd=RULES.parent, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
