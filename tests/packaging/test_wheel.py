"""The package that `pip install` makes: one top-level name, and all of the program's names work from it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.support.one_file import REPLY, REQUEST
from tests.support.source import ROOT

SOURCES = ("execserver", "helpers", "pyproject.toml", "LICENSE", "README.md")
# In UTF-8 mode, which no variable can switch on for `-I`: the environment's own path may have other letters.
PYTHON = [sys.executable, "-I", "-X", "utf8"]
PIP = [*PYTHON, "-m", "pip", "--disable-pip-version-check", "--quiet"]
READ_ONLY = {
    "type": "managed",
    "network": "restricted",
    "file_system": {
        "type": "restricted",
        "entries": [{"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}],
    },
}


def run(*words: object, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command outside of the checkout, with no variable that leads into it."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [*map(str, words)], input=given, capture_output=True, timeout=120, check=False, cwd="/", env=variables
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the source: what an older build left beside it must not get in."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    command = [
        *PIP,
        "wheel",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "-w",
        folder / "made",
        folder,
    ]
    done = run(*command)
    assert done.returncode == 0, done.stderr.decode()
    (made,) = (folder / "made").iterdir()
    return made


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of an environment with the wheel, which sees the packages that are installed here."""
    venv = tmp_path_factory.mktemp("environment")
    assert run(sys.executable, "-I", "-m", "venv", "--without-pip", venv).returncode == 0
    paths = {"base": str(venv), "platbase": str(venv)}
    site = Path(sysconfig.get_path("purelib", vars=paths))
    (site / "installed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = venv / "bin" / "python3"
    done = run(*PIP, "--python", python, "install", "--no-deps", "--no-index", wheel)
    assert done.returncode == 0, done.stderr.decode()
    return venv / "bin" / "execserver"


@pytest.fixture(scope="module")
def aliases(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program's other names."""
    folder = tmp_path_factory.mktemp("aliases")
    done = run(program, "install-aliases", folder)
    assert (done.returncode, done.stderr) == (0, b"")
    return folder


def test_it_installs_one_package_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"execserver"}
    assert "execserver/py.typed" in names
    assert "execserver/box/web/static/index.html" in names


def test_it_holds_every_module(wheel: Path) -> None:
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "execserver").rglob("*.py")}
    wanted |= {f"execserver/_helpers/{path.name}" for path in (ROOT / "helpers").glob("*.py")}
    with zipfile.ZipFile(wheel) as packed:
        assert {name for name in packed.namelist() if name.endswith(".py")} == wanted
        entry = packed.read("execserver/_helpers/__init__.py")
    assert entry == (ROOT / "helpers" / "__init__.py").read_bytes()


def test_it_says_its_version_and_checks_itself(program: Path) -> None:
    done = run(program, "--version")
    assert (done.returncode, done.stdout[:11], done.stderr) == (0, b"execserver ", b"")
    done = run(program, "self-test")
    assert (done.returncode, done.stderr) == (0, b""), done.stdout
    assert b"\nOK in " in done.stdout


def test_its_doctor_examines_the_machine(program: Path) -> None:
    done = run(program, "doctor")
    assert done.returncode in (0, 1)  # 1: some policy is refused on this machine
    assert (done.stdout[:6], done.stderr) == (b"Linux ", b"")


def test_its_licence_comes_along(wheel: Path, program: Path) -> None:
    text = (ROOT / "LICENSE").read_bytes()
    done = run(program, "licenses")
    assert (done.returncode, done.stdout[: len(text)], done.stderr) == (0, text, b"")
    with zipfile.ZipFile(wheel) as packed:
        (about,) = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        lines = packed.read(about).decode().splitlines()
    assert "License-Expression: Apache-2.0" in lines
    assert not [line for line in lines if line.startswith("Requires-Dist") and "==" in line]


def test_its_file_helper_answers(aliases: Path) -> None:
    done = run(aliases / "codex-fs", given=REQUEST)
    assert (done.returncode, done.stdout, done.stderr) == (0, REPLY, b"")


def test_its_sandbox_confines_a_command(program: Path, aliases: Path, tmp_path: Path) -> None:
    policies = {
        each["name"]: each for each in json.loads(run(program, "doctor", "--json").stdout)["policies"]
    }
    if policies["read-only"]["backEnd"] is None:
        pytest.skip(f"no sandbox works here: {policies['read-only']['blocker']}")
    words = [aliases / "codex-linux-sandbox", "--sandbox-policy-cwd", tmp_path]
    words += ["--permission-profile", json.dumps(READ_ONLY), "--", "sh", "-c"]
    done = run(*words, f"echo ran; touch {tmp_path}/written || exit 3")
    assert (done.returncode, done.stdout) == (3, b"ran\n"), done.stderr
    assert not (tmp_path / "written").exists()


def test_another_distributions_helpers_are_not_taken(program: Path) -> None:
    site = next((program.parents[1] / "lib").glob("python3*/site-packages"))
    (site / "helpers").mkdir()
    (site / "helpers" / "__init__.py").write_text("raise RuntimeError('the wrong package')\n")
    try:
        done = run(program, "codex-fs", given=REQUEST)
    finally:
        shutil.rmtree(site / "helpers")
    assert (done.returncode, done.stdout, done.stderr) == (0, REPLY, b"")
