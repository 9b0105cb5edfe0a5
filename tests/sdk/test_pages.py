"""The SDK's pages: every snippet runs, and the reference is what the docstrings say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sdk.relay_scene import RelayScene
from tests.support.server_process import ServerProcess
from tests.support.source import ROOT
from tools.sdk.reference import PAGE, render

TEXT = (ROOT / "docs" / "sdk.md").read_text()
RELAY = "relay:https://relay.example.org/{name}"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def section(snippet: str) -> str:
    """Return the heading above a snippet."""
    return str(re.findall(r"^#+ (.*)$", TEXT[: TEXT.index(snippet)], re.MULTILINE)[-1])


def run(snippet: str, folder: Path, url: str) -> str:
    """Run a snippet as a program of its own, in a folder; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", snippet],
        env={"PYTHONPATH": f"{ROOT}/sdk:{ROOT}", "EXECSERVER_BOX": url, "HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("snippet", [each for each in SNIPPETS if RELAY not in each], ids=section)
def test_a_snippet_runs(snippet: str, server: ServerProcess, tmp_path: Path) -> None:
    run(snippet, tmp_path, server.url)


def test_the_snippet_with_a_relay_runs_there(relay_scene: RelayScene, tmp_path: Path) -> None:
    (snippet,) = (each for each in SNIPPETS if RELAY in each)
    token = tmp_path / "relay-token"
    token.write_text(relay_scene.token)
    token.chmod(0o600)
    # One box in place of a hundred, and five clients of it.
    here = snippet.replace(RELAY, relay_scene.box).replace("range(100)", "range(5)")
    said = run(here, tmp_path, "")
    relay_scene.way.cut()  # the proxy keeps its ends until then
    assert re.fullmatch(r"(devbox-\d \d+\.\d+ \d+\.\d+\n\n){5}", said), said


def test_the_first_snippet_has_at_most_ten_lines() -> None:
    assert len([line for line in SNIPPETS[0].splitlines() if line]) <= 10


def test_the_snippet_of_the_clients_own_page_runs(server: ServerProcess, tmp_path: Path) -> None:
    page = (ROOT / "sdk" / "client.md").read_text()
    (snippet,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    # Its folder and its program are not on every machine, nor is there a sandbox on every one.
    for given, here in {
        "ws://127.0.0.1:8765": server.url,
        "/src": str(tmp_path),
        '["make", "test"]': '["echo", "made"]',
        "workspace-write": "full-access",
    }.items():
        assert snippet.count(given) == 1
        snippet = snippet.replace(given, here)
    assert run(snippet, tmp_path, "") == "0 made\n\n"


def test_the_reference_is_up_to_date() -> None:
    assert PAGE.read_text() == render(), "`python3 build.py docs` writes it"
