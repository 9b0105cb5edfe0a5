"""The SDK's pages: every snippet runs, and the reference is what the docstrings say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server_process import ServerProcess
from tests.support.source import ROOT
from tools.sdk.reference import PAGE, render

TEXT = (ROOT / "docs" / "sdk.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def section(snippet: str) -> str:
    """Return the heading above a snippet."""
    return str(re.findall(r"^#+ (.*)$", TEXT[: TEXT.index(snippet)], re.MULTILINE)[-1])


@pytest.mark.parametrize("snippet", SNIPPETS, ids=section)
def test_a_snippet_runs(snippet: str, server: ServerProcess, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", snippet],
        env={"PYTHONPATH": f"{ROOT}/sdk:{ROOT}", "EXECSERVER_BOX": server.url, "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_first_snippet_has_at_most_ten_lines() -> None:
    assert len([line for line in SNIPPETS[0].splitlines() if line]) <= 10


def test_the_reference_is_up_to_date() -> None:
    assert PAGE.read_text() == render(), "`python3 build.py docs` writes it"
