"""A machine of another kind as the place that a file is for: pinned packages of Debian, and wheels.

Nothing of this machine gets into such a file but the byte-code that its Python compiles.  Which modules there
are is what PyInstaller finds here; each of them is taken from where it lies in the packages or wheels.
"""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from functools import partial
from pathlib import Path

from tools.debian import unpack
from tools.freeze import packages
from tools.freeze.analysis import Analysis
from tools.freeze.elf import is_elf, read_elf
from tools.freeze.platforms import Distribution, Platform, found_in
from tools.freeze.wheels import wheels_for
from tools.problems import Problem

LARGEST_PAGE = 64 * 1024  # of an aarch64 kernel

_ELF_MACHINES = {"x86_64": 62, "aarch64": 183}


def of_packages(machine: str, root: Path, work: Path) -> Platform:
    """Return a machine as its packages and wheels describe it, fetched if need be.  Raises Problem."""
    version = sys.version_info[:2]
    if version != packages.PYTHON:
        wanted = ".".join(map(str, packages.PYTHON))
        raise Problem(
            f"the packages are of Python {wanted}, and this is {version[0]}.{version[1]}",
            f"install python{wanted} and python{wanted}-venv, remove .venv, build again",
        )
    system, site = work / f"system-{machine}", work / f"wheels-{machine}"
    _unpack_packages(machine, root, system)
    distributions = _unpack_wheels(machine, root, work, site)
    interpreter = system / "usr" / "bin" / "python3.11"
    folders = [path.parent for path in system.rglob("libc.so.6")]
    loader = read_elf(interpreter).loader
    if loader is None or not folders:
        raise Problem(f"the packages for {machine} hold no C library", "pin others")
    triple = folders[0].name
    libraries = [folders[0], system / "usr" / "lib" / triple, *sorted(site.glob("*.libs"))]
    return Platform(
        machine,
        packages.pinned(machine)[0].version.partition("-")[0],
        interpreter,
        folders[0] / Path(loader).name,
        system / "usr" / "lib" / "python3.11",
        partial(found_in, libraries),
        distributions,
        is_native=False,
    )


def moved(found: Analysis, platform: Platform, site_packages: Path) -> Analysis:
    """Return what was found on this machine with the files of a platform of packages.  Raises Problem.

    An extension without a file is one that is built into that interpreter.
    """
    site = _site(platform)
    # The packages first: they may lie inside of the standard library.
    places = ((site_packages, site), (Path(os.__file__).parent, platform.standard_library))
    modules = {name: _moved(path, places) for name, path in found.modules.items()}
    extensions = {name: _extension(name, platform, site) for name in {*found.extensions, *_built_in_here()}}
    built_in = platform.interpreter.read_bytes()
    absent = [str(path) for path in modules.values() if not path.exists()]
    absent += [
        name
        for name, path in extensions.items()
        if path is None and b"\0%b\0" % name.encode() not in built_in and name in found.extensions
    ]
    if absent:
        raise Problem(f"the packages lack {', '.join(sorted(absent))}", "pin others")
    return Analysis(modules, {name: path for name, path in sorted(extensions.items()) if path}, {})


def check(tree: Path, machine: str) -> None:
    """Raise Problem unless every program and library of a tree runs on a machine, with pages of any size."""
    for path in sorted(each for each in tree.rglob("*") if each.is_file() and is_elf(each)):
        elf = read_elf(path)
        if elf.machine != _ELF_MACHINES[machine]:
            raise Problem(f"{path.name} is not for {machine}", "remove build/ and start again")
        if machine == "aarch64" and elf.alignment < LARGEST_PAGE:
            raise Problem(
                f"{path.name} cannot be loaded with pages of 64 KiB", "pin a build of it that is aligned"
            )


def _unpack_packages(machine: str, root: Path, system: Path) -> None:
    suite = packages.suite(machine, root / "build")
    files = [suite.fetch_pinned(pin) for pin in packages.pinned(machine)]
    shutil.rmtree(system, ignore_errors=True)
    for file in files:
        unpack(file, system)


def _unpack_wheels(machine: str, root: Path, work: Path, site: Path) -> tuple[Distribution, ...]:
    wheels = wheels_for(packages.PYTHON, machine, root / "requirements.txt", work)
    if not wheels:
        raise Problem(f"there are no wheels for {machine}", "connect to the network and build again")
    shutil.rmtree(site, ignore_errors=True)
    found = []
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(site)
            found.append({name: site / name for name in packed.namelist() if not name.endswith("/")})
    return tuple(found)


def _site(platform: Platform) -> Path:
    name, path = next(iter(platform.distributions[0].items()))
    return path.parents[len(Path(name).parts) - 1]


def _moved(path: Path, places: tuple[tuple[Path, Path], ...]) -> Path:
    for here, there in places:
        if path.is_relative_to(here):
            return there / path.relative_to(here)
    return path  # our own


def _extension(name: str, platform: Platform, site: Path) -> Path | None:
    folder = name.replace(".", "/")
    for place in (platform.standard_library / "lib-dynload", site):
        stem = place / folder
        for suffix in (f".cpython-311-{platform.machine}-linux-gnu.so", ".abi3.so", ".so"):
            path = stem.with_name(stem.name + suffix)
            if path.exists():
                return path
    return None


def _built_in_here() -> set[str]:
    """Return what this interpreter has built in, and that of the packages may have as a file."""
    return set(sys.builtin_module_names)
