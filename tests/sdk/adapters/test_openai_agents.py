"""The adapter of openai-agents, with the real package in an environment of its own and a scripted model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sdk.adapters.frameworks import play
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long


def test_agents_of_the_framework_work_on_a_box(server: ServerProcess, tmp_path: Path) -> None:
    assert " passed" in play("openai-agents", "with_openai_agents.py", server, tmp_path)


def test_the_snippet_of_the_page_runs(server: ServerProcess, tmp_path: Path) -> None:
    assert "1 passed" in play("openai-agents", "page_openai_agents.py", server, tmp_path)
