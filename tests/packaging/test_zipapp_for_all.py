"""dist/execserver-all.pyz: one zipapp for several kinds of machines, which takes its parts when it starts."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.packaging.test_target import ARM, BUILD_LIMIT_S, X86
from tests.support.one_file import Box
from tests.support.source import ROOT
from tools.freeze import console, licences, packages, pyz_main, zipapp
from tools.freeze.elf import read_elf
from tools.freeze.pyz_refusal import refusal
from tools.problems import Problem

SIZE_BAR = 52 * 2**20  # of seven Pythons' compiled modules; a file that serves one machine has less
MACHINES = {"x86_64": X86, "aarch64": ARM}
TAGS = ("cp311-x86_64-glibc", "cp312-x86_64-glibc", "cp311-aarch64-glibc")
# Two builds that share what is downloaded, and nothing else that could get into a file.
BUILD = """
import pathlib, sys
from tools.freeze import packages, zipapp
root = pathlib.Path(sys.argv[1])
sys.stdout.buffer.write(zipapp.make(root, root / "build" / "freeze", packages.MACHINES))
"""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have every Python served by a wheel of few files, but 3.12 on aarch64 and all newer ones."""

    def wheels_for(version: tuple[int, int], machine: str, *_: object) -> list[Path]:
        number = f"{version[0]}{version[1]}"
        if f"cp{number}-{machine}-glibc" not in TAGS:
            return []
        wheel = tmp_path / f"{number}-{machine}.whl"
        with zipfile.ZipFile(wheel, "w") as packed:
            packed.writestr("part/__init__.py", "")
            packed.writestr("part/any.abi3.so", machine)
            packed.writestr(f"part/own.cpython-{number}.so", machine)
        return [wheel]

    monkeypatch.setattr(zipapp, "wheels_for", wheels_for)
    monkeypatch.setattr(zipapp, "_product", lambda root: {"execserver/__init__.py": b""})
    monkeypatch.setattr(console, "carried", lambda root: {})
    monkeypatch.setattr(console, "licence", lambda root: [])
    monkeypatch.setattr(licences, "page", lambda parts: "")


@pytest.mark.usefixtures("small")
def test_each_python_gets_what_is_for_all_for_its_machine_and_for_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = tmp_path / "all.pyz"
    made.write_bytes(zipapp.make(ROOT, tmp_path, tuple(MACHINES)))
    with zipfile.ZipFile(made) as packed:
        names = {name for name in packed.namelist() if "part/" in name}
        trees = dict(line.split() for line in packed.read(pyz_main.TREES_FILE).decode().splitlines())
        monkeypatch.setattr(pyz_main, "tag", lambda: "cp312-x86_64-glibc")
        wanted = dict(pyz_main.wanted(packed))
        contents = {path: packed.read(member) for member, path in wanted.items()}
    assert names == {
        "any/part/__init__.py",
        "x86_64-glibc/part/any.abi3.so",  # once for both Pythons
        "cp311-x86_64-glibc/part/own.cpython-311.so",
        "cp312-x86_64-glibc/part/own.cpython-312.so",
        "aarch64-glibc/part/any.abi3.so",
        "aarch64-glibc/part/own.cpython-311.so",
    }
    assert contents["part/any.abi3.so"] == contents["part/own.cpython-312.so"] == b"x86_64"
    assert "part/own.cpython-311.so" not in contents
    assert set(trees) == set(TAGS)
    assert len(set(trees.values())) == len(TAGS)


@pytest.mark.usefixtures("small")
def test_a_machine_without_any_wheels_is_no_reason_to_make_less(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="no wheels for riscv64 could be downloaded"):
        zipapp.make(ROOT, tmp_path, ("x86_64", "riscv64"))


def test_another_kind_of_machine_is_refused_in_plain_words() -> None:
    assert refusal(TAGS, "cp312-riscv64-glibc") == (
        "execserver: this file serves x86_64 and aarch64, and this Python is for riscv64\n"
        "  What to do: start it on a machine of one of those kinds, "
        "or take a file for this kind (execserver-all.pyz serves x86_64 and aarch64)\n"
    )
    assert "and this Python is of 32 bits" in refusal(TAGS, "cp312-x86_64_32bit-glibc")


def test_another_python_or_library_is_named() -> None:
    said = refusal(TAGS, "cp39-x86_64-glibc")
    assert "serves cp311-x86_64-glibc and cp312-x86_64-glibc on x86_64, and this Python is cp39-" in said
    assert "take the file without .pyz, which needs no Python" in said
    assert "needs a Python with glibc, and this Python is cp311-aarch64-other" in (
        refusal(TAGS, "cp311-aarch64-other")
    )


def test_a_python_of_32_bits_is_not_taken_for_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "_32bit" not in pyz_main.tag()
    monkeypatch.setattr(sys, "maxsize", 2**31 - 1)
    assert f"-{os.uname().machine}_32bit-" in pyz_main.tag()


@pytest.fixture(scope="module")
def builds(dist: Path) -> list[bytes]:
    """The file made twice, by processes that have little in common."""
    made = []
    for seed, zone, mask in (("1", "UTC", 0o022), ("2", "Asia/Kathmandu", 0o077)):
        variables = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "TZ": zone,
            "LC_ALL": "C" if seed == "1" else "C.UTF-8",
        }
        command = [sys.executable, "-c", BUILD, str(ROOT)]
        done = subprocess.run(command, cwd=ROOT, env=variables, umask=mask, capture_output=True, check=False)
        if b"could be downloaded" in done.stderr:
            pytest.skip(done.stderr.decode().strip().splitlines()[-1])
        assert done.returncode == 0, done.stderr.decode()
        made.append(done.stdout)
    return made


@pytest.mark.long
@pytest.mark.timeout(2 * BUILD_LIMIT_S)
def test_two_builds_give_the_same_small_file_that_starts_here(builds: list[bytes], tmp_path: Path) -> None:
    first, second = builds
    assert first == second
    assert len(first) < SIZE_BAR
    program = tmp_path / "execserver-all.pyz"
    program.write_bytes(first)
    box = Box(program, tmp_path)
    command = [sys.executable, str(program), "self-test"]
    done = subprocess.run(command, env=box.variables, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


@pytest.mark.long
@pytest.mark.timeout(2 * BUILD_LIMIT_S)
@pytest.mark.parametrize("machine", packages.MACHINES)
def test_each_machine_unpacks_programs_of_its_own_kind_only(
    machine: str, builds: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, place = tmp_path / "execserver-all.pyz", tmp_path / "place"
    program.write_bytes(builds[0])
    place.mkdir(0o700)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=machine))
    pyz_main.fill(str(place), "tree", str(program), doubted=False)
    libraries = [*(place / "tree").rglob("*.so")]
    assert {read_elf(path).machine for path in libraries} == {MACHINES[machine]}
    names = {path.name.partition(".")[0] for path in libraries}
    assert {"_greenlet", "_core", "_rust", "starlark", "corecext"} <= names
    assert (place / "tree" / "execserver" / "server.py").exists()
