"""Makes dist/execserver and dist/execserver.pyz, or finds that they are up to date.

    python -m tools.freeze.build [--anew]

Runs in the interpreter that is to be carried, with the pinned packages.  What it makes depends on the
sources, the pins and the tools alone; a fingerprint of all of them decides whether anything is to be done.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from execserver.box.web.pages import CARRIED as CONSOLE
from execserver.verbs.licenses import PAGE
from tools.environment import locked
from tools.freeze import archive, boot, console, head, licences, tree, zipapp
from tools.freeze.analysis import analyse
from tools.freeze.elf import read_elf
from tools.interpreter import ask
from tools.problems import Problem, from_os_error, not_ours, say, tell

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "freeze"
ONE_FILE, ZIPAPP = ROOT / "dist" / "execserver", ROOT / "dist" / "execserver.pyz"
MARKER = "made.json"

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
        if not anew and _is_made(fingerprint()):
            return
        if not os.access(WORK, os.W_OK) or not os.access(ONE_FILE.parent, os.W_OK):
            raise not_ours(ROOT)  # else the first to fail is a folder that could not be removed
        started = time.monotonic()
        console.fetch(ROOT)
        wanted = fingerprint()
        say("building dist/execserver and dist/execserver.pyz (half a minute)")
        # Side by side: both mostly wait for other programs, or compress.
        with ThreadPoolExecutor(1) as beside:
            zipped = beside.submit(zipapp.make, ROOT, WORK)
            _replace(ONE_FILE, one_file())
            _replace(ZIPAPP, zipped.result())
        made = {path.name: _digest(path) for path in (ONE_FILE, ZIPAPP)}
        (WORK / MARKER).write_text(json.dumps({"fingerprint": wanted, "files": made}))
        say(f"built after {time.monotonic() - started:.0f} s; {_carried()}")


def _carried() -> str:
    """Return which interpreter the file carries, and what to do if there may be a faster one."""
    carried = ask(sys.executable)
    if carried is None:
        return "the interpreter that it carries does not answer"
    text = f"it carries {carried.described}"
    if carried.is_optimized:
        return text
    return f"{text}; for one that starts faster install your system's python3-venv, remove .venv, build again"


def one_file() -> bytes:
    """Return the contents of dist/execserver, made from scratch."""
    folder = WORK / "tree"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    found = analyse(Path(sys.executable), WORK)
    loader = tree.lay_out(found, folder, ROOT)
    libraries = [path.name for path in (folder / "lib").iterdir() if path.is_file()]
    tree.write_files(folder / CONSOLE, console.carried(ROOT))
    carried = [*licences.of_the_one_file(found, libraries, ROOT), *console.licence(ROOT)]
    tree.write_text(folder / PAGE, licences.page(carried))
    compiled = head.compile_launcher(ROOT / "launcher", WORK, loader, ROOT / "build" / "compiler")
    return head.join(
        ROOT / "launcher", compiled, loader, archive.pack(folder, tree.helper_files(folder, loader))
    )


def fingerprint() -> str:
    """Return a hash of everything that goes into the files."""
    digest = hashlib.sha256()
    for path in _inputs():
        digest.update(f"{path.relative_to(ROOT)} {_digest(path)}\n".encode())
    digest.update(f"{len(console.licence(ROOT))} {len(console.carried(ROOT))}".encode())
    program = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    digest.update(f"{sys.version} {program} {boot.__name__} {read_elf(program)}".encode())
    for command in _TOOLS:
        found = shutil.which(command[0])
        digest.update(subprocess.check_output(command, stderr=subprocess.STDOUT) if found else b"none")
    return digest.hexdigest()


def _inputs() -> Iterator[Path]:
    for folder, pattern in _SOURCES:
        yield from sorted(path for path in (ROOT / folder).rglob(pattern) if path.is_file())
    yield ROOT / "LICENSE"
    yield from (ROOT / name for name in _REQUIREMENTS)


def _is_made(wanted: str) -> bool:
    try:
        known = json.loads((WORK / MARKER).read_text())
        files = {path.name: _digest(path) for path in (ONE_FILE, ZIPAPP)}
    except (OSError, ValueError):
        return False
    return bool(known == {"fingerprint": wanted, "files": files})


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
    try:
        build(anew="--anew" in argv)
    except Problem as problem:
        return tell(problem)
    except OSError as error:
        return tell(from_os_error(error, ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
