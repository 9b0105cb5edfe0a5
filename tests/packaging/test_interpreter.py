"""Which build of a Python is carried."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.programs import write_script
from tools import interpreter
from tools.interpreter import ask, best_build

OWN = list(sys.version_info[:3])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(interpreter, "_PLACES", ())
    return tmp_path


def double(path: Path, *, version: list[int] = OWN, is_optimized: bool = True, makes: bool = True) -> str:
    """Make a program that says this about itself."""
    return str(write_script(path, f"echo '{json.dumps([version, str(path), is_optimized, makes])}'"))


def test_this_python_says_what_it_is() -> None:
    found = ask(sys.executable)
    assert found is not None
    assert list(found.version) == OWN
    assert found.described.startswith(f"Python {'.'.join(map(str, OWN))} (/")
    assert found.described.endswith(("built with profiles", "a plain build"))


def test_a_build_with_profiles_goes_before_a_plain_one(place: Path) -> None:
    plain = double(place / "plain", is_optimized=False)
    assert best_build(plain) == plain
    better = double(place / f"python{OWN[0]}.{OWN[1]}")
    assert best_build(plain) == better
    assert best_build(double(place / "own")) == str(place / "own")


@pytest.mark.parametrize(
    "wrong",
    [{"version": [3, 10, 1]}, {"is_optimized": False}, {"makes": False}],
    ids=lambda wrong: str(*wrong),
)
def test_what_does_not_fit_is_left_alone(place: Path, wrong: dict[str, object]) -> None:
    plain = double(place / "plain", is_optimized=False)
    double(place / f"python{OWN[0]}.{OWN[1]}", **wrong)  # type: ignore[arg-type]
    assert best_build(plain) == plain


def test_what_is_no_python_is_none(place: Path) -> None:
    assert ask(str(place / "missing")) is None
    assert ask(str(write_script(place / "other", "echo hello"))) is None
    assert best_build(str(place / "missing")) == str(place / "missing")
