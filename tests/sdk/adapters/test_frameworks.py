"""How the environments of the frameworks are made, and what is told where they cannot be: with a real pip.

The index is a folder of this machine with one package in it.
"""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.sdk.adapters import frameworks

pytestmark = pytest.mark.long


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index that has a `pytest` of version 0.1 and nothing else; pip uses no other."""
    folder = tmp_path / "index"
    folder.mkdir()
    about = "pytest-0.1.dist-info"
    with zipfile.ZipFile(folder / "pytest-0.1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("pytest.py", "NAME = 'of the index'\n")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: pytest\nVersion: 0.1\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    return folder


def pins(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "requirements-of-it.txt"
    file.write_text("\n".join([*lines, ""]))
    return file


def test_an_environment_is_made_whole_and_open_to_others(index: Path, tmp_path: Path) -> None:
    frameworks._make(tmp_path / "made", pins(tmp_path, "pytest==0.1"))
    assert frameworks._is_whole(tmp_path / "made")
    python = tmp_path / "made" / "bin" / "python"
    told = subprocess.check_output([python, "-c", "import pytest; print(pytest.NAME)"], text=True)
    assert told == "of the index\n"
    assert [path for path in (tmp_path / "made").rglob("*.py") if not path.stat().st_mode & 0o004] == []


def test_pins_that_cannot_be_had_are_a_failure_with_pips_words(index: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"requirements-of-it.*not-there==1"):
        frameworks._make(tmp_path / "made", pins(tmp_path, "not-there==1", "pytest==0.1"))
    assert not frameworks._is_whole(tmp_path / "made")


def test_without_an_index_the_test_is_left_out_with_pips_words(index: Path, tmp_path: Path) -> None:
    (index / "pytest-0.1-py3-none-any.whl").unlink()
    with pytest.raises(pytest.skip.Exception, match=r"no package index[^$]*pytest==0.1"):
        frameworks._make(tmp_path / "made", pins(tmp_path, "pytest==0.1"))
    assert not frameworks._is_whole(tmp_path / "made")
