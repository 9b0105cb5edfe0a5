"""The SDK's wheels: their files and metadata, and how they load where only what they ask for is installed."""

from __future__ import annotations

import ast
import base64
import configparser
import hashlib
import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from execserver.version import __version__
from tests.support.server_process import ServerProcess
from tests.support.source import ROOT
from tools.sdk.packages import packages
from tools.sdk.wheels import make, make_server

NAMES = [package.name for package in packages(ROOT)]
# What the client needs, and what this needs itself; as they lie in the environment of these tests.
NEEDED = ("msgspec", "websockets")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    return {package.name: make(package, folder) for package in packages(ROOT)}


@pytest.fixture(scope="module")
def python(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the client, and with nothing that it does not ask for."""
    venv = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-I", "-m", "venv", "--without-pip", venv)
    paths = {"base": str(venv), "platbase": str(venv)}
    site, here = (Path(sysconfig.get_path("purelib", vars=each)) for each in (paths, None))
    for name in NEEDED:
        (site / name).symlink_to(here / name)
    interpreter = venv / "bin" / "python3"
    pip = (sys.executable, "-I", "-X", "utf8", "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "--python", interpreter, "install", "--no-deps", "--no-index", *wheels.values())
    return interpreter


def run(*words: object) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, timeout=120, check=False, cwd="/", env=variables
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def entries(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def about(wheel: Path, name: str) -> bytes:
    (found,) = [data for path, data in entries(wheel).items() if path.endswith(f".dist-info/{name}")]
    return found


def test_the_same_source_makes_the_same_bytes(wheels: dict[str, Path], tmp_path: Path) -> None:
    for package in packages(ROOT):
        assert make(package, tmp_path).read_bytes() == wheels[package.name].read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_the_record_lists_every_file_with_its_hash(wheels: dict[str, Path], name: str) -> None:
    lines = dict.fromkeys(about(wheels[name], "RECORD").decode().splitlines())
    for path, data in entries(wheels[name]).items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        line = f"{path},," if path.endswith("/RECORD") else f"{path},sha256={digest},{len(data)}"
        assert line in lines
    assert len(lines) == len(entries(wheels[name]))


@pytest.mark.parametrize("name", NAMES)
def test_the_metadata_are_complete(wheels: dict[str, Path], name: str) -> None:
    told = Metadata.from_email(about(wheels[name], "METADATA"), validate=True)
    assert (told.name, str(told.version), told.license_expression) == (name, __version__, "Apache-2.0")
    assert (str(told.requires_python), told.license_files) == (">=3.11", ["LICENSE"])
    assert told.description is not None
    assert told.description.startswith(f"# {name}\n")
    assert "Typing :: Typed" in (told.classifiers or [])
    assert about(wheels[name], "licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_no_two_packages_share_a_file_and_none_has_the_servers(wheels: dict[str, Path]) -> None:
    tops = {name: {path.partition("/")[0] for path in entries(wheel)} for name, wheel in wheels.items()}
    assert {name: {top for top in each if "." not in top} for name, each in tops.items()} == {
        name: {name.replace("-", "_")} for name in NAMES
    }


def test_entry_points_lead_to_modules_of_the_wheel(wheels: dict[str, Path]) -> None:
    led = set()
    for wheel in wheels.values():
        files = entries(wheel)
        for path, data in files.items():
            if not path.endswith("/entry_points.txt"):
                continue
            points = configparser.ConfigParser()
            points.read_string(data.decode())
            for group in points.sections():
                for module in points[group].values():
                    assert f"{module.replace('.', '/')}.py" in files
                    led.add((group, module))
    assert ("pytest11", "pytest_execserver.plugin") in led


def test_extras_and_entry_points_are_those_of_the_file(wheels: dict[str, Path]) -> None:
    told = tomllib.loads((ROOT / "sdk" / "execserver_adapters" / "EXTRAS.toml").read_text())
    points = configparser.ConfigParser()
    points.read_string(about(wheels["execserver-adapters"], "entry_points.txt").decode())
    assert {group: dict(points[group]) for group in points.sections()} == told["entry-points"]
    found = Metadata.from_email(about(wheels["execserver-adapters"], "METADATA"), validate=True)
    assert found.provides_extra == list(told["extras"])


def test_inspect_finds_the_adapter_where_the_wheel_is_installed(python: Path) -> None:
    code = "from importlib.metadata import entry_points; print(entry_points(group='inspect_ai'))"
    said = run(python, "-I", "-c", code)
    assert "execserver_adapters" in said
    assert "value='execserver_adapters.inspect_ai'" in said


def test_no_module_imports_the_servers_package(wheels: dict[str, Path]) -> None:
    wrong = []
    for wheel in wheels.values():
        for path, data in entries(wheel).items():
            for node in ast.walk(ast.parse(data)) if path.endswith(".py") else ():
                named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                named += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                wrong += [(path, name) for name in named if name.partition(".")[0] == "execserver"]
    assert wrong == []


EVERY_MODULE = """
import importlib, pkgutil, sys
import execserver_client
failed = {}
for found in pkgutil.walk_packages(execserver_client.__path__, "execserver_client."):
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        failed.setdefault(error.name.partition(".")[0], []).append(found.name)
print(sorted(failed), "gevent" in sys.modules, "greenlet" in sys.modules)
"""


def test_the_client_loads_where_gevent_is_not_installed(python: Path) -> None:
    """What needs cryptography is the relay's, an extra."""
    assert run(python, "-I", "-c", EVERY_MODULE) in (
        "['cryptography'] False False\n",
        "[] False False\n",
    )


USE = """
import asyncio, sys
from execserver_client import NotFoundError, connect
from execserver_client.sync import connect as connect_blocking

async def main():
    async with connect(sys.argv[1]) as box:
        result = await box.run(["sh", "-c", "echo asynchronous; exit 3"])
        try:
            await box.files.read("/no/such/file")
        except NotFoundError:
            print(result.text.strip(), result.exit_code)

asyncio.run(main())
with connect_blocking(sys.argv[1]) as box:
    print(box.run(["echo", "blocking"]).text.strip(), "gevent" in sys.modules)
"""
SAID = "asynchronous 3\nblocking False\n"


def test_the_installed_client_uses_a_real_server(python: Path) -> None:
    with ServerProcess() as server:
        assert run(python, "-I", "-c", USE, server.url) == SAID


def fresh(folder: Path, *requirements: object) -> Path:
    """Return the interpreter of an environment with packages from the index."""
    run(sys.executable, "-I", "-m", "venv", folder)
    run(folder / "bin" / "python3", "-I", "-m", "pip", "install", "--quiet", *requirements)
    return folder / "bin" / "python3"


@pytest.mark.long
@pytest.mark.parametrize("websockets", ["websockets==15.0", "websockets"])
def test_pip_installs_the_client_with_what_it_needs(
    wheels: dict[str, Path], tmp_path: Path, websockets: str
) -> None:
    python = fresh(tmp_path, websockets, wheels["execserver-client"])
    with ServerProcess() as server:
        assert run(python, "-I", "-c", USE, server.url) == SAID


@pytest.mark.long
def test_everything_installs_into_one_environment(wheels: dict[str, Path], tmp_path: Path) -> None:
    server = make_server(tmp_path / "dist")
    python = fresh(
        tmp_path / "environment", server, f"{wheels['execserver-client']}[relay,fast]", *wheels.values()
    )
    (tmp_path / "test_box.py").write_text(
        "def test_it(execbox):\n    assert execbox.run(['echo', 'there']).text == 'there\\n'\n"
    )
    variables = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    for name in ("EXECSERVER_PROGRAM", "EXECSERVER_BOX", "PYTHONPATH"):
        variables.pop(name, None)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_box.py"]
    done = subprocess.run(
        [*map(str, command)], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert run(python, "-I", "-m", "pip", "check") == "No broken requirements found.\n"


@pytest.mark.long
def test_a_type_checker_sees_the_types(python: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from execserver_client.sandbox import Sandbox\n"
        "from execserver_client._shared.client.errors import OutputGap\n"
        "reveal_type(Sandbox.read_only)\n"
        "def lost(gap: OutputGap) -> str:\n    return gap.first_seq\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, program]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert 'Incompatible return value type (got "int", expected "str")' in done.stdout
    assert "Found 1 error" in done.stdout
    assert "Any" not in done.stdout
