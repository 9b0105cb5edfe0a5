"""A file for another kind of machine: its parts here, the file itself in long runs."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.test_tree import SIZE_BAR
from tests.support.source import ROOT
from tools.freeze import build, console, head, packages, target
from tools.freeze.analysis import Analysis
from tools.freeze.elf import read_elf
from tools.freeze.platforms import Platform, found_in, this_one
from tools.problems import Problem

BUILD_LIMIT_S = 900
X86, ARM = 62, 183
LOAD, DYNAMIC = 1, 2
NEEDED, STRINGS, END = 1, 5, 0


def elf(machine: int = ARM, needed: tuple[str, ...] = (), alignment: int = 0x10000) -> bytes:
    """Return a library that says which machine it is for and what it needs, and does nothing."""
    start = 64 + 2 * 56
    texts = b"\0" + b"".join(name.encode() + b"\0" for name in needed)
    places = [texts.index(name.encode()) for name in needed]
    size = (len(needed) + 2) * 16
    tags = [*((NEEDED, place) for place in places), (STRINGS, start + size), (END, 0)]
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in tags)
    whole = start + len(dynamic) + len(texts)
    first = struct.pack("<IIQQQQQQ", LOAD, 5, 0, 0, 0, whole, whole, alignment)
    second = struct.pack("<IIQQQQQQ", DYNAMIC, 4, start, start, start, len(dynamic), len(dynamic), 8)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    return struct.pack("<16sHHIQQQIHHHHHH", ident, 3, machine, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0) + (
        first + second + dynamic + texts
    )


def test_libraries_are_found_with_all_that_they_need(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    program = tmp_path / "program"
    program.write_bytes(elf(needed=("liba.so.1", "libgone.so")))
    (first / "liba.so.1").write_bytes(elf(needed=("libb.so.2",)))
    (second / "libb.so.2").write_bytes(elf(needed=("liba.so.1",)))
    (second / "libgcc_s.so.1").write_bytes(elf())
    (second / "libother.so").write_bytes(elf())
    assert found_in((first, second), [program]) == {
        "liba.so.1": first / "liba.so.1",
        "libb.so.2": second / "libb.so.2",
        "libgcc_s.so.1": second / "libgcc_s.so.1",
    }


def test_what_is_for_another_machine_or_for_small_pages_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "liba.so"
    library.write_bytes(elf())
    target.check(tmp_path, "aarch64")
    with pytest.raises(Problem, match=r"liba\.so is not for x86_64"):
        target.check(tmp_path, "x86_64")
    library.write_bytes(elf(alignment=0x1000))
    assert read_elf(library).alignment == 0x1000
    with pytest.raises(Problem, match=r"liba\.so cannot be loaded with pages of 64 KiB"):
        target.check(tmp_path, "aarch64")
    library.write_bytes(elf(X86, alignment=0x1000))
    target.check(tmp_path, "x86_64")


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    """An aarch64 machine with few files."""
    library, site = tmp_path / "python", tmp_path / "site"
    for path in (library / "lib-dynload", site / "package"):
        path.mkdir(parents=True)
    (tmp_path / "interpreter").write_bytes(b"..\0_json\0..")
    (library / "lib-dynload" / "termios.cpython-311-aarch64-linux-gnu.so").write_bytes(elf())
    (library / "os.py").touch()
    (site / "package" / "_rust.abi3.so").write_bytes(elf())
    (site / "package" / "__init__.py").touch()
    return Platform(
        "aarch64",
        "3.11.2",
        tmp_path / "interpreter",
        tmp_path / "ld.so",
        library,
        lambda _: {},
        ({"package/__init__.py": site / "package" / "__init__.py"},),
        is_native=False,
    )


def test_each_module_is_taken_from_where_it_lies_on_the_other_machine(platform: Platform) -> None:
    here = Path(os.__file__).parent
    found = Analysis(
        {
            "os": here / "os.py",
            "package": here / "site" / "package" / "__init__.py",
            "own": ROOT / "build.py",
        },
        {"_json": here / "x", "termios": here / "x", "package._rust": here / "x"},
        {"libz.so.1": here / "x"},
    )
    moved = target.moved(found, platform, here / "site")
    site = platform.distributions[0]["package/__init__.py"].parents[1]
    assert moved.modules == {
        "os": platform.standard_library / "os.py",
        "package": site / "package" / "__init__.py",
        "own": ROOT / "build.py",
    }
    assert moved.extensions == {  # _json is built in
        "package._rust": site / "package" / "_rust.abi3.so",
        "termios": platform.standard_library / "lib-dynload" / "termios.cpython-311-aarch64-linux-gnu.so",
    }
    assert moved.libraries == {}


def test_what_the_other_machine_lacks_is_told(platform: Platform) -> None:
    here = Path(os.__file__).parent
    with pytest.raises(Problem, match=r"the packages lack .*/python/struct.py, _ssl"):
        target.moved(Analysis({"struct": here / "struct.py"}, {"_ssl": here / "x"}, {}), platform, ROOT / "x")


def test_this_machine_is_described_alike() -> None:
    platform = this_one(ROOT)
    assert platform.machine == os.uname().machine
    assert read_elf(platform.loader.resolve()).loader is None
    assert "libc.so.6" in platform.libraries([platform.interpreter])
    assert any("gevent/__init__.py" in files for files in platform.distributions)


@pytest.mark.parametrize("machine", packages.MACHINES)
def test_every_package_is_pinned_by_its_hash(machine: str) -> None:
    pins = packages.pinned(machine)
    assert sorted(pin.name for pin in pins) == sorted(packages.NAMES)
    assert all(re.fullmatch("[0-9a-f]{64}", pin.digest) for pin in pins)
    assert pins[0].version.startswith(".".join(map(str, packages.PYTHON)))


def test_both_machines_have_the_same_versions() -> None:
    first, second = ({(pin.name, pin.version) for pin in packages.pinned(each)} for each in packages.MACHINES)
    assert first == second


def test_without_the_pinned_compiler_there_is_no_launcher_for_another_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(head, "_packaged", lambda *_: [])
    with pytest.raises(Problem, match="the launcher cannot be compiled for aarch64"):
        head.cross_compile(ROOT / "launcher", tmp_path, "ld.so", tmp_path, "aarch64")


def test_an_unknown_kind_of_machine_is_refused() -> None:
    command = [sys.executable, "-m", "tools.freeze.build", "--target", "riscv64"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "there are no packages for riscv64" in done.stderr
    assert "take one of aarch64, x86_64 as a target" in done.stderr


@pytest.mark.long
@pytest.mark.timeout(2 * BUILD_LIMIT_S)
@pytest.mark.parametrize("machine", packages.MACHINES)
def test_two_builds_give_the_same_bytes(machine: str) -> None:
    command = [sys.executable, "-m", "tools.freeze.build", "--anew", "--target", machine]
    file = ROOT / "dist" / f"execserver-{machine}"
    made = []
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if "apt knows no place" in done.stderr or "there is no apt" in done.stderr:
            pytest.skip(done.stderr.strip().splitlines()[-2])
        assert done.returncode == 0, done.stderr
        made.append(file.read_bytes())
    assert made[0] == made[1]
    assert len(made[0]) < SIZE_BAR
    assert read_elf(file).loader is None
    assert read_elf(file).machine == {"x86_64": X86, "aarch64": ARM}[machine]


def test_a_source_that_changes_during_a_build_is_built_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = ["before"]

    def change_sources(machine: str) -> bytes:
        now[0] = "after"
        return b"built"

    monkeypatch.setattr(build, "WORK", tmp_path / "work")
    monkeypatch.setattr(build, "ONE_FILE", tmp_path / "dist" / "execserver")
    monkeypatch.setattr(build, "fingerprint", lambda machine: now[0])
    monkeypatch.setattr(console, "fetch", lambda root: None)
    monkeypatch.setattr(build, "_file_for", change_sources)
    file = build.build_for("aarch64")
    assert file.read_bytes() == b"built"
    assert not build._is_made((file,), "after")
    assert build._is_made((file,), "before")
