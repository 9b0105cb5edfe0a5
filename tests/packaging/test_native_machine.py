"""A build for the machine that it runs on takes the same path on every kind of processor.

No machine of another kind is here: what asks for the kind is told another one.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.source import ROOT
from tools.freeze import build, console, head, packages, platforms, wheels, zipapp

TABLES = {"packages.py", "target.py"}  # of the kinds that files can be made for elsewhere


@pytest.fixture(params=packages.MACHINES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kind of processor that this machine seems to have."""
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=request.param, release="6.1"))
    return str(request.param)


def test_only_tables_name_a_kind_of_processor() -> None:
    folder = ROOT / "tools" / "freeze"
    named = {
        path.name
        for path in folder.glob("*.py")
        for each in ("'x86_64'", '"x86_64"', "'aarch64'", '"aarch64"')
        if each in path.read_text()
    }
    assert named == TABLES


def test_the_file_is_for_the_machine_that_makes_it(machine: str) -> None:
    platform = platforms.this_one(ROOT)
    assert (platform.machine, platform.is_native) == (machine, True)


def test_the_packaged_compiler_is_asked_for_that_machine(machine: str, tmp_path: Path) -> None:
    (tmp_path / "ziglang").mkdir()
    (compiler,) = head._packaged(ROOT, tmp_path, os.uname().machine)
    assert compiler.command[-2:] == ("-target", f"{machine}-linux-musl")


def test_both_files_are_made_for_it(machine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[list[str]] = []

    def make(root: Path, work: Path, machines: list[str]) -> bytes:
        made.append(machines)
        return b"zipapp"

    monkeypatch.setattr(build, "WORK", tmp_path / "work")
    for name in ("ONE_FILE", "ZIPAPP"):
        monkeypatch.setattr(build, name, tmp_path / "dist" / name)
    monkeypatch.setattr(build, "fingerprint", lambda: "wanted")
    monkeypatch.setattr(console, "fetch", lambda root: None)
    monkeypatch.setattr(build, "_file_for_this_machine", lambda: b"file")
    monkeypatch.setattr(build, "_carried", lambda: "")
    monkeypatch.setattr(zipapp, "make", make)
    monkeypatch.setattr(wheels, "are_there", lambda *_: False)
    build.build()
    assert not build._is_made(
        (build.ONE_FILE, build.ZIPAPP), "wanted"
    )  # one that lacks a Python is made anew
    made.clear()
    monkeypatch.setattr(wheels, "are_there", lambda *_: True)
    build.build()
    assert build._is_made((build.ONE_FILE, build.ZIPAPP), "wanted")
    assert made == [[machine]]
    assert (tmp_path / "dist" / "ONE_FILE").read_bytes() == b"file"
