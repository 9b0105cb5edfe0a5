"""A kernel built from Debian's source: when, of what, and once; the build itself needs minutes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.machines import own_kernel
from tests.machines.matrix import CELLS
from tools.debian import DEBIAN, Suite
from tools.problems import Problem


def test_only_packages_of_sources_are_built() -> None:
    assert [cell.note for cell in CELLS if own_kernel.is_wanted(cell.package)] == [
        "large pages, built from source"
    ]


def test_what_a_build_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    suite = Suite(tmp_path, DEBIAN, "bookworm", "aarch64")
    with pytest.raises(Problem, match=r"there is no make, flex, bison, bc, aarch64-linux-gnu-gcc"):
        own_kernel.kernel(suite, "linux-source-6.1", tmp_path)


def test_it_is_built_once_for_each_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    config.write_text("CONFIG_A=y\n")
    monkeypatch.setattr(own_kernel, "_CONFIG", config)
    digest = hashlib.sha256(config.read_bytes()).hexdigest()[:16]
    (tmp_path / f"linux-source-6.1-{digest}").write_bytes(b"kernel")
    monkeypatch.setenv("PATH", "")  # whatever it started would not be found
    suite = Suite(tmp_path, DEBIAN, "bookworm", "aarch64")
    assert own_kernel.kernel(suite, "linux-source-6.1", tmp_path).read_bytes() == b"kernel"
    config.write_text("CONFIG_B=y\n")
    with pytest.raises(Problem, match="no kernel can be built here"):
        own_kernel.kernel(suite, "linux-source-6.1", tmp_path)


def test_a_step_that_fails_is_told_with_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="failed: no rule"):
        own_kernel._run(["sh", "-c", "echo no rule >&2; exit 2"], tmp_path)
