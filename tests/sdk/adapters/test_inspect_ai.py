"""The adapter of Inspect, with the real package in an environment of its own and a scripted model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sdk.adapters.frameworks import play
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long


def test_the_frameworks_own_checks_and_an_evaluation_pass(server: ServerProcess, tmp_path: Path) -> None:
    told = play("inspect-ai", "with_inspect_ai.py", server, tmp_path)
    assert " passed" in told
    assert ("xfailed" in told) == (os.geteuid() == 0)
