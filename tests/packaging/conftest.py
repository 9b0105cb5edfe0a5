"""The built files, brought up to date once for all tests of this folder."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.one_file import Box, is_version
from tests.support.source import ROOT
from tools.freeze import pyz_main

FILES = ("execserver", "execserver.pyz")
SMALL = "small.pyz"
BUILD_LIMIT_S = 400  # with everything to do and a busy machine; a moment when nothing is


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark of tests that are not about unpacking."""
    config.addinivalue_line("markers", "unpacked: the program has unpacked itself before, in a shared home")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give whichever test comes first the time for the build, unless it has a time of its own."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(BUILD_LIMIT_S), append=False)


@pytest.fixture(scope="session")
def dist() -> Path:
    """The folder with both files."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.freeze.build"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return ROOT / "dist"


@pytest.fixture(scope="session")
def program(dist: Path) -> Path:
    """The file, if it has a launcher."""
    with (dist / "execserver").open("rb") as file:
        if file.read(2) == b"#!":
            pytest.skip("there was no compiler to build a launcher with")
    return dist / "execserver"


@pytest.fixture(scope="session")
def used_home(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home where both files have been started before: unpacking takes longer than all else they do."""
    folder = tmp_path_factory.mktemp("used")
    home = None
    for name in FILES:
        (folder / name).mkdir()
        box = Box(dist / name, folder / name, home)
        home = box.home
        assert is_version(box.run())
    assert home is not None
    return home


def surroundings(request: pytest.FixtureRequest, program: Path, folder: Path) -> Box:
    """Return the surroundings of one test: a home of its own, or with the mark `unpacked` the shared one."""
    shared = request.node.get_closest_marker("unpacked") is not None
    return Box(program, folder, request.getfixturevalue("used_home") if shared else None)


@pytest.fixture(params=FILES)
def box(request: pytest.FixtureRequest, dist: Path, tmp_path: Path) -> Box:
    """Surroundings for one of the files; a test that knows only one of them asks for it by name."""
    return surroundings(request, dist / request.param, tmp_path)


@pytest.fixture(scope="session")
def small_zipapp(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zipapp with next to nothing in it to unpack and to compare: what does both is the real one's."""
    file = tmp_path_factory.mktemp("small") / SMALL
    with (dist / "execserver.pyz").open("rb") as large, file.open("wb") as small:
        small.write(large.readline())
        with zipfile.ZipFile(large) as real, zipfile.ZipFile(small, "w") as packed:
            for name in real.namelist():
                if "/" not in name:
                    packed.writestr(name, real.read(name))
            packed.writestr(f"{pyz_main.COMMON}/{pyz_main.START}", "print('execserver small')\n")
            packed.writestr(f"{pyz_main.COMMON}/folder/module.py", "pass\n")
    file.chmod(0o755)
    return file


@pytest.fixture(params=["execserver", SMALL, pytest.param("execserver.pyz", marks=pytest.mark.long)])
def light(request: pytest.FixtureRequest, dist: Path, tmp_path: Path) -> Box:
    """Surroundings for each file, in short runs with a small zipapp: the real one unpacks for a second."""
    is_small = request.param == SMALL
    return Box(request.getfixturevalue("small_zipapp") if is_small else dist / request.param, tmp_path)


@pytest.fixture
def one_file(request: pytest.FixtureRequest, dist: Path, tmp_path: Path) -> Box:
    """Surroundings for dist/execserver."""
    return surroundings(request, dist / "execserver", tmp_path)


@pytest.fixture
def zipapp(request: pytest.FixtureRequest, dist: Path, tmp_path: Path) -> Box:
    """Surroundings for dist/execserver.pyz."""
    return surroundings(request, dist / "execserver.pyz", tmp_path)
