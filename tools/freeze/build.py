"""Makes dist/execserver and dist/execserver.pyz, or finds that they are up to date.

    python -m tools.freeze.build [--anew] [--target MACHINE]...

Runs in the interpreter that is to be carried, with the pinned packages.  With targets it makes their files
`dist/execserver-MACHINE` instead, of pinned packages, on any machine; with all there are, also
`dist/execserver-all.pyz`, a zipapp for each of them.  What it makes depends on the sources,
the pins and the tools alone; a fingerprint of all of them decides whether anything is to be done.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from execserver.box.web.pages import CARRIED as CONSOLE
from execserver.verbs.licenses import PAGE
from tools.environment import locked
from tools.freeze import (
    archive,
    boot,
    console,
    head,
    installer,
    licences,
    packages,
    platforms,
    target,
    tree,
    wheels,
    zipapp,
)
from tools.freeze.analysis import Analysis, analyse
from tools.freeze.elf import read_elf
from tools.freeze.platforms import Platform
from tools.interpreter import ask
from tools.problems import Problem, from_os_error, not_ours, say, tell

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "freeze"
COMPILER = ROOT / "build" / "compiler"
ONE_FILE, ZIPAPP = ROOT / "dist" / "execserver", ROOT / "dist" / "execserver.pyz"
ZIPAPP_FOR_ALL = ROOT / "dist" / "execserver-all.pyz"
MARKER = "made"

_SOURCES = (
    ("execserver", "*.py"),
    ("execserver/box/web/static", "*"),
    ("helpers", "*.py"),
    ("launcher", "*"),
    ("tools", "*.py"),
    ("tools", "*.spec"),
    ("tools", "*.txt"),
)
_REQUIREMENTS = ("requirements.txt", "requirements-dev.txt", "requirements-compiler.txt")
_TOOLS = (("cc", "--version"), ("strip", "--version"), ("ldd", "--version"))


def build(*, anew: bool = False) -> None:
    """Bring both files up to date.  Raises Problem."""
    WORK.mkdir(parents=True, exist_ok=True)
    ONE_FILE.parent.mkdir(exist_ok=True)
    with locked(WORK, "waiting for another build"):
        if not anew and _is_made((ONE_FILE, ZIPAPP), fingerprint()):
            return
        started = _begin()
        wanted = fingerprint()
        say("building dist/execserver and dist/execserver.pyz (half a minute)")
        # Side by side: both mostly wait for other programs, or compress.
        with ThreadPoolExecutor(1) as beside:
            zipped = beside.submit(zipapp.make, ROOT, WORK, [os.uname().machine])
            _replace(ONE_FILE, _file_for_this_machine())
            _replace(ZIPAPP, zipped.result())
        if _serves_all([os.uname().machine]):
            _note((ONE_FILE, ZIPAPP), wanted)
        say(f"built after {time.monotonic() - started:.0f} s; {_carried()}")


def build_for(machine: str, *, anew: bool = False) -> Path:
    """Bring the file for a kind of processor up to date; return it.  Raises Problem."""
    if machine not in packages.MACHINES:
        raise Problem(
            f"there are no packages for {machine}", f"take one of {', '.join(packages.MACHINES)} as a target"
        )
    return _made(ONE_FILE.with_name(f"{ONE_FILE.name}-{machine}"), machine, _file_for, anew)


def build_zipapp_for_all(*, anew: bool = False) -> Path:
    """Bring the zipapp for every kind of processor up to date; return it.  Raises Problem."""
    return _made(ZIPAPP_FOR_ALL, "all", lambda _: zipapp.make(ROOT, WORK, packages.MACHINES), anew)


def _made(file: Path, kind: str, make: Callable[[str], bytes], anew: bool) -> Path:
    """Make a file for other machines, unless it is up to date; return it.  Raises Problem."""
    WORK.mkdir(parents=True, exist_ok=True)
    ONE_FILE.parent.mkdir(exist_ok=True)
    with locked(WORK, "waiting for another build"):
        if not anew and _is_made((file,), fingerprint(kind)):
            return file
        started = _begin()
        wanted = fingerprint(kind)  # before: whatever is changed meanwhile is built next time
        say(f"building dist/{file.name} (a minute, the first time more)")
        _replace(file, make(kind))
        if kind != "all" or _serves_all(packages.MACHINES):
            _note((file,), wanted)
        say(f"built after {time.monotonic() - started:.0f} s: {file.stat().st_size / 2**20:.2f} MiB")
    return file


def _serves_all(machines: Sequence[str]) -> bool:
    """Return whether a zipapp has all its Pythons; one that lacks some is made anew next time."""
    return wheels.are_there(machines, ROOT / "requirements.txt", WORK)


def _begin() -> float:
    """See that files can be made here, and get what is fetched apart; return the time."""
    if not os.access(WORK, os.W_OK) or not os.access(ONE_FILE.parent, os.W_OK):
        raise not_ours(ROOT)  # else the first to fail is a folder that could not be removed
    started = time.monotonic()
    console.fetch(ROOT)
    return started


def _carried() -> str:
    """Return which interpreter the file carries, and what to do if there may be a faster one."""
    carried = ask(sys.executable)
    if carried is None:
        return "the interpreter that it carries does not answer"
    text = f"it carries {carried.described}"
    if carried.is_optimized:
        return text
    return f"{text}; for one that starts faster install your system's python3-venv, remove .venv, build again"


def _file_for_this_machine() -> bytes:
    """Return the contents of dist/execserver, made from scratch."""
    platform = platforms.this_one(ROOT)
    compiled = head.compile_launcher(ROOT / "launcher", WORK, platform.loader.name, COMPILER)
    init = head.compile_init(ROOT / "launcher", WORK, COMPILER) if compiled else None
    return one_file(analyse(Path(sys.executable), WORK), platform, WORK / "tree", compiled, init)


def _file_for(machine: str) -> bytes:
    """Return the contents of the file for a kind of processor, made from scratch."""
    work = WORK / machine
    work.mkdir(exist_ok=True)
    platform = target.of_packages(machine, ROOT, work)
    site_packages = Path(sysconfig.get_path("purelib"))
    found = target.moved(analyse(Path(sys.executable), WORK), platform, site_packages)
    compiled = head.cross_compile(ROOT / "launcher", work, platform.loader.name, COMPILER, machine)
    init = head.compile_init(ROOT / "launcher", work, COMPILER, machine)
    made = one_file(found, platform, work / "tree", compiled, init)
    target.check(work / "tree", machine)
    return made


def one_file(
    found: Analysis, platform: Platform, folder: Path, compiled: Path | None, init: Path | None = None
) -> bytes:
    """Return the contents of a single-file program, made from scratch; its tree is left in `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    loader = tree.lay_out(found, platform, folder, ROOT)
    if init is not None:
        tree.place(init, folder / head.INIT, tree.PROGRAM_MODE)
    libraries = [path.name for path in (folder / "lib").iterdir() if path.is_file()]
    tree.write_files(folder / CONSOLE, console.carried(ROOT))
    carried = [*licences.of_the_one_file(found, libraries, platform), *console.licence(ROOT)]
    tree.write_text(folder / PAGE, licences.page(carried))
    return head.join(
        ROOT / "launcher", compiled, loader, archive.pack(folder, tree.helper_files(folder, loader))
    )


def fingerprint(machine: str = "") -> str:
    """Return a hash of everything that goes into the files of this machine, or into that for another kind."""
    digest = hashlib.sha256(machine.encode())
    for path in _inputs():
        digest.update(f"{path.relative_to(ROOT)} {_digest(path)}\n".encode())
    digest.update(f"{len(console.licence(ROOT))} {len(console.carried(ROOT))}".encode())
    program = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    digest.update(f"{sys.version} {program} {boot.__name__} {read_elf(program)}".encode())
    for command in () if machine else _TOOLS:
        found = shutil.which(command[0])
        digest.update(subprocess.check_output(command, stderr=subprocess.STDOUT) if found else b"none")
    return digest.hexdigest()


def _inputs() -> Iterator[Path]:
    for folder, pattern in _SOURCES:
        yield from sorted(path for path in (ROOT / folder).rglob(pattern) if path.is_file())
    yield ROOT / "LICENSE"
    yield from (ROOT / name for name in _REQUIREMENTS)


def _is_made(files: Sequence[Path], wanted: str) -> bool:
    try:
        known = json.loads(_marker(files).read_text())
        there = {path.name: _digest(path) for path in files}
    except (OSError, ValueError):
        return False
    return bool(known == {"fingerprint": wanted, "files": there})


def _note(files: Sequence[Path], wanted: str) -> None:
    made = {path.name: _digest(path) for path in files}
    _marker(files).write_text(json.dumps({"fingerprint": wanted, "files": made}))


def _marker(files: Sequence[Path]) -> Path:
    return WORK / f"{MARKER}-{files[0].name}.json"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _replace(target: Path, data: bytes) -> None:
    """Write a program so that whoever starts it meanwhile gets the old one or the new one."""
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    fresh.write_bytes(data)
    fresh.chmod(0o755)
    fresh.replace(target)


def main(argv: list[str]) -> int:
    """Build; a Problem is told in plain words with its cure."""
    targets = [word for before, word in pairwise(argv) if before == "--target"]
    try:
        if targets:
            installer.write(ROOT, [build_for(machine, anew="--anew" in argv) for machine in targets])
            if set(targets) == set(packages.MACHINES):
                build_zipapp_for_all(anew="--anew" in argv)
        else:
            build(anew="--anew" in argv)
    except Problem as problem:
        return tell(problem)
    except OSError as error:
        return tell(from_os_error(error, ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
