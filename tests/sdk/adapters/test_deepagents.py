"""The adapter of deepagents, with the real package in an environment of its own and a scripted model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.sdk.adapters.frameworks import play
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long


def test_agents_of_the_framework_work_on_a_box(server: ServerProcess, tmp_path: Path) -> None:
    assert " passed" in play("deepagents", "with_deepagents.py", server, tmp_path)


def test_the_standard_tests_of_sandboxes_pass(server: ServerProcess, tmp_path: Path) -> None:
    told = play("deepagents", "standard_deepagents.py", server, tmp_path, "-o", "asyncio_mode=auto")
    passed, expected = re.findall(r"(\d+) (?:passed|xfailed)", told)
    assert (int(passed) > 75, int(expected)) == (True, 7)


def test_the_snippet_of_the_page_runs(server: ServerProcess, tmp_path: Path) -> None:
    assert "1 passed" in play("deepagents", "page_deepagents.py", server, tmp_path)
