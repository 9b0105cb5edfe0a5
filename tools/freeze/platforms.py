"""The machine that a file is for: its interpreter, standard library, shared libraries and distributions."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from tools.environment import pins
from tools.freeze.elf import read_elf
from tools.problems import Problem

# Loaded by name while a program runs, so no file says that it is needed: glibc does so to end a thread.
LOADED_BY_NAME = ("libgcc_s.so.1",)

_LDD_LINE = re.compile(r"^\s*(\S+) => (/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)

Distribution = dict[str, Path]  # the files of an installed package, by their names in it


class Platform(NamedTuple):
    """Where the parts come from that depend on the machine.

    `libraries` returns name -> file of all that some files need, directly or not, as far as it is found.
    `is_native` says that programs of this machine's own can work on the files.
    """

    machine: str
    version: str
    interpreter: Path
    loader: Path
    standard_library: Path
    libraries: Callable[[list[Path]], dict[str, Path]]
    distributions: tuple[Distribution, ...]
    is_native: bool


def this_one(root: Path) -> Platform:
    """Return this machine, as the interpreter sees it that runs this.  Raises Problem."""
    program = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    loader = read_elf(program).loader
    if loader is None:
        raise Problem(f"{program} is linked without a dynamic loader", "start build.py with another Python")
    return Platform(
        os.uname().machine,
        sys.version.split()[0],
        program,
        Path(loader),
        Path(os.__file__).parent,
        _found_by_the_loader,
        tuple(_installed(pin.partition("==")[0]) for pin in pins([root / "requirements.txt"])),
        is_native=True,
    )


def found_in(folders: Iterable[Path], files: list[Path]) -> dict[str, Path]:
    """Return name -> file of the libraries that lie in some folders and that some ELF files need."""
    there = {path.name: path for folder in folders for path in folder.glob("*.so*")}
    found: dict[str, Path] = {}
    unread = [*files]
    wanted = list(LOADED_BY_NAME)
    while unread:
        wanted += read_elf(unread.pop()).needed
        fresh = [name for name in dict.fromkeys(wanted) if name in there and name not in found]
        found.update((name, there[name]) for name in fresh)
        unread += [there[name] for name in fresh]
        wanted = []
    return found


def _found_by_the_loader(files: list[Path]) -> dict[str, Path]:
    variables = {"PATH": os.environ["PATH"]}
    command = ["ldd", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    found = {name: Path(path) for name, path in _LDD_LINE.findall(done.stdout)}
    if "libc.so.6" in found:
        for name in LOADED_BY_NAME:
            beside = found["libc.so.6"].with_name(name)
            if beside.exists():
                found.setdefault(name, beside)
    return found


def _installed(name: str) -> Distribution:
    distribution = importlib.metadata.distribution(name)
    return {str(file): Path(str(distribution.locate_file(file))) for file in distribution.files or ()}
