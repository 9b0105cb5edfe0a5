"""The adapter of mini-SWE-agent, with the real package in an environment of its own and a scripted model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sdk.adapters.frameworks import play
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long


def test_an_agent_of_the_framework_works_on_a_box(server: ServerProcess, tmp_path: Path) -> None:
    assert " passed" in play("mini-swe-agent", "with_mini_swe_agent.py", server, tmp_path)
