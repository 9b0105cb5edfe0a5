"""The built files, brought up to date once for all tests of this folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.one_file import Box
from tests.support.source import ROOT

BUILD_LIMIT_S = 400  # with everything to do and a busy machine; a moment when nothing is


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give whichever test comes first the time for the build."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(BUILD_LIMIT_S), append=False)


@pytest.fixture(scope="session")
def dist() -> Path:
    """The folder with both files."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.freeze.build"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return ROOT / "dist"


@pytest.fixture(params=["execserver", "execserver.pyz"])
def box(request: pytest.FixtureRequest, dist: Path, tmp_path: Path) -> Box:
    """Surroundings for one of the files; a test that knows only one of them asks for it by name."""
    return Box(dist / request.param, tmp_path)


@pytest.fixture
def one_file(dist: Path, tmp_path: Path) -> Box:
    """Surroundings for dist/execserver."""
    return Box(dist / "execserver", tmp_path)


@pytest.fixture
def zipapp(dist: Path, tmp_path: Path) -> Box:
    """Surroundings for dist/execserver.pyz."""
    return Box(dist / "execserver.pyz", tmp_path)
