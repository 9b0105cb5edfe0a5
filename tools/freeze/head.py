"""The head of the one file: the launcher, compiled; without any compiler a shell script that does less.

The same compilers make the sandbox init, which goes into the tree; without one its work is Python's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tools.freeze.archive import Payload, trailer
from tools.freeze.elf import NotElf, read_elf
from tools.freeze.packages import INIT_MACHINES
from tools.problems import Problem, say

SOURCES = (
    *("launcher.c", "cache.c", "prove.c", "unpack.c", "wrapper.c", "json.c"),
    *("plain.c", "request.c", "base64.c", "looking.c", "changing.c", "copying.c"),
)
INIT_SOURCES = ("entry.c", "message.c", "template.c", "root.c", "init.c", "watch.c", "command.c")
INIT = "sandbox-init"  # in the tree, where execserver/runtime_paths.py looks for it
SCRIPT = "head.sh"
REQUIREMENTS = "requirements-compiler.txt"

_START = "@START@"
_FLAGS = ("-std=gnu11", "-O2", "-s", "-static", "-Wall", "-Wextra", "-Wl,--build-id=none")
# Entered without a C library, at fixed addresses, and with nothing that either would have to set up.
_INIT_FLAGS = (
    *(*_FLAGS, "-ffreestanding", "-fno-pie", "-no-pie", "-Wl,-e,entry"),
    *("-fno-stack-protector", "-fno-asynchronous-unwind-tables"),
)
_ZIG = "zig"
_COMPILERS = ("cc", "gcc", "clang")


class Compiler(NamedTuple):
    """A C compiler that links statically: the words that start it, and how it is called."""

    command: tuple[str, ...]
    name: str


def join(launcher: Path, compiled: Path | None, loader: str, payload: Payload) -> bytes:
    """Return the one file: the compiled launcher, or the script, and the payload."""
    if compiled is not None:
        head = compiled.read_bytes()
        return head + payload.data + payload.manifest + trailer(len(head), payload)
    script = (launcher / SCRIPT).read_text().replace("@HASH@", payload.hash).replace("@LOADER@", loader)
    # As long as what it replaces; `tail -c +N` counts from 1.
    start = f"{len(script.encode()) + 1:<{len(_START)}}"
    return script.replace(_START, start).encode() + payload.data


def cross_compile(launcher: Path, work: Path, loader: str, packages: Path, machine: str) -> Path:
    """Return the launcher for a machine of any kind, by the pinned compiler alone.  Raises Problem."""
    target = work / "launcher"
    for compiler in _packaged(launcher.parent, packages, machine):
        if _compile(compiler, launcher, target, loader):
            return target
    raise Problem(f"the launcher cannot be compiled for {machine}", "connect to the network and build again")


def compile_launcher(launcher: Path, work: Path, loader: str, packages: Path) -> Path | None:
    """Return the compiled launcher, or None when there is no compiler; says what is lost then."""
    target = work / "launcher"
    # One after the other: the second list is only made when nothing of the first has worked.
    for find in (installed, lambda: _packaged(launcher.parent, packages, os.uname().machine)):
        for compiler in find():
            if _compile(compiler, launcher, target, loader):
                return target
    say(
        "there is no C compiler that links statically, and none could be installed: the head of\n"
        "  dist/execserver is a shell script now\n"
        "  Lost: names forced into argv[0], locks on trees in use, boxes without sh, tar and gzip\n"
        "  What to do: install a compiler (e.g. `apt install gcc libc6-dev`) and build again"
    )
    return None


def compile_init(launcher: Path, work: Path, packages: Path, machine: str = "") -> Path | None:
    """Return the compiled sandbox init, for another machine if one is named; None where there is none."""
    if (machine or os.uname().machine) not in INIT_MACHINES:
        return None
    target = work / INIT
    packaged = partial(_packaged, launcher.parent, packages, machine or os.uname().machine)
    finders: list[Callable[[], list[Compiler]]] = [packaged] if machine else [installed, packaged]
    for find in finders:
        for compiler in find():
            # zig has no headers without its C library, of which nothing is used: 1 KB.
            alone = () if compiler.name == _ZIG else ("-nostdlib",)
            words = (*_INIT_FLAGS, *alone, "-o", str(target), *INIT_SOURCES)
            if _links(compiler, launcher / "init", target, words):
                return target
    say("the sandbox init cannot be compiled: sandboxed commands start in twice the time")
    return None


def installed() -> list[Compiler]:
    """Return the C compilers of this machine, the first one first."""
    return [Compiler((path,), name) for name in _COMPILERS if (path := shutil.which(name))]


def _packaged(root: Path, packages: Path, machine: str) -> list[Compiler]:
    """Install the pinned compiler package beside the environment: it is large, and few need it."""
    if not (packages / "ziglang").is_dir():
        say(f"installing a C compiler that links statically into {packages} (once; needs the network)")
        command = [sys.executable, "-I", "-m", "pip", "install", "--no-deps", "--disable-pip-version-check"]
        command += ["--quiet", "--target", str(packages), "-r", str(root / REQUIREMENTS)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            say(f"that failed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
            return []
    zig = str(packages / "ziglang" / "zig")
    return [Compiler((zig, "cc", "-target", f"{machine}-linux-musl"), _ZIG)]


def _compile(compiler: Compiler, launcher: Path, target: Path, loader: str) -> bool:
    return _links(compiler, launcher, target, (*_FLAGS, f'-DLOADER="{loader}"', "-o", str(target), *SOURCES))


def _links(compiler: Compiler, folder: Path, target: Path, words: tuple[str, ...]) -> bool:
    """Compile what is in a folder; return whether that made a static program."""
    # Compiled where the sources are: no path of this machine gets into the program.
    command = [*compiler.command, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["?"])[-1]
        say(f"{compiler.name} cannot compile the {folder.name}: {why}")
        return False
    try:
        return read_elf(target).loader is None
    except NotElf:
        return False
