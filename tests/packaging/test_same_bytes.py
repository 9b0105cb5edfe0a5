"""Two builds of dist/execserver itself: in different folders, under different settings, the same bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.conftest import FILES
from tests.packaging.test_target import BUILD_LIMIT_S
from tests.support.source import ROOT

NOT_SOURCE = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "tests", "docs", "bench")
DOWNLOADED = ("xterm", "compiler", "freeze/wheels")  # below build/; shared by both
SETTINGS = (
    ("first", 0o022, {"TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "1", "HOME": "/", "USER": "one"}),
    ("a second/and deeper", 0o077, {"TZ": "Asia/Kathmandu", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2"}),
)


def checkout(folder: Path) -> Path:
    """Make another checkout of the source as it lies here, with what a build has downloaded."""
    shutil.copytree(ROOT, folder, ignore=NOT_SOURCE)
    for name in DOWNLOADED:
        found = ROOT / "build" / name
        if found.exists():
            (folder / "build" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(found, folder / "build" / name)
    return folder


@pytest.mark.long
@pytest.mark.timeout(2 * BUILD_LIMIT_S)
def test_folder_umask_time_zone_locale_and_hash_seed_change_no_byte(dist: Path, tmp_path: Path) -> None:
    made = []
    for name, mask, variables in SETTINGS:
        folder = checkout(tmp_path / name)
        done = subprocess.run(
            [sys.executable, "-m", "tools.freeze.build", "--anew"],
            cwd=folder,
            env={"PATH": os.environ["PATH"], **variables},
            umask=mask,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        made.append({each: (folder / "dist" / each).read_bytes() for each in FILES})
    first, second = made
    # Not compared by pytest, which would describe the difference of files of many MiB.
    assert [each for each in FILES if first[each] != second[each]] == []
