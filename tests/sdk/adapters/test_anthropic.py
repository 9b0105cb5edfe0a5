"""The adapter of anthropic, with the real package in an environment of its own and a scripted model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sdk.adapters.frameworks import play
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long


def test_agents_of_the_framework_work_on_a_box(server: ServerProcess, tmp_path: Path) -> None:
    assert " passed" in play("anthropic", "with_anthropic.py", server, tmp_path)


def test_the_worker_of_an_environment_serves_its_sessions_on_a_box(
    server: ServerProcess, tmp_path: Path
) -> None:
    assert "1 passed" in play("anthropic", "worker_anthropic.py", server, tmp_path)
