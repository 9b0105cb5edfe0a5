"""Tries the files of `dist/` on many kernels, each in an emulated machine, and writes docs/platforms.md.

    python -m tests.machines.matrix [WORD]...

Words choose the cells whose name holds one of them; then the page is not written, only what was found shown.
One machine runs at a time.  A cell that cannot be run says why on the page.
"""

from __future__ import annotations

import compileall
import datetime
import py_compile
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from tests.machines import report
from tests.machines.initramfs import Files, file, of_folder
from tests.machines.machine import Machine, can_run, run
from tests.machines.report import Found
from tests.machines.system import USER_ID, cache, kernel, system, ubuntu
from tests.support.source import ROOT
from tools.debian import DEBIAN, Distribution, unpack
from tools.freeze import packages
from tools.problems import Problem, say, tell

MEMORY_MIB = 1536
LIMIT_S = 1200  # for one machine; a quiet host needs two minutes
_PROGRAM = "usr/local/bin/execserver"
_OWN = "opt/tests"
_LEFT_OUT = ("config-3.11", "lib2to3", "pydoc_data", "ensurepip", "idlelib", "test")

# An emulated machine has no source of entropy, and whoever asks for random bytes may wait for minutes.
_SEED = """import fcntl, os
random = os.open("/dev/random", os.O_WRONLY)
fcntl.ioctl(random, 0x40085203, bytes((0, 8, 0, 0, 0, 1, 0, 0)) + bytes(256))  # RNDADDENTROPY, 2,048 bits
"""
_SCRIPT = f"""
PYTHONHASHSEED=0 python3.11 -S -c '{_SEED}'
export PYTHONPATH=/{_OWN} PATH=/usr/local/bin:/usr/bin:/bin
ln -sf python3.11 /usr/bin/python3
chown {USER_ID}:{USER_ID} /home/person
chmod 700 /root
echo "kernel $(uname -r)"
check() {{
    echo "user $1"
    su -s /bin/sh "$1" -c "cd; execserver doctor" | sed 's/^/doctor /'
    su -s /bin/sh "$1" -c "cd; python3 -B /{_OWN}/tests/machines/inside.py /{_PROGRAM}"
}}
check root
check person
"""


class Cell(NamedTuple):
    """One machine: its name on the page, its kernel, what is special, and a script that makes it so."""

    name: str
    architecture: str
    distribution: Callable[[], Distribution]
    release: str
    package: str
    note: str = ""
    before: str = ""
    processor: str = ""


def _debian() -> Distribution:
    return DEBIAN


_X86, _ARM, _UBUNTU = "linux-image-cloud-amd64", "linux-image-cloud-arm64", "linux-image-generic"
_WITH_16_KIB = "max,pauth-impdef=on"  # a plain one has pages of 4 and 64 KiB only
_RESTRICTED = "echo 1 >/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
CELLS = (  # the oldest kernel first
    Cell("Ubuntu 18.04", "x86_64", ubuntu, "bionic", _UBUNTU),
    Cell("Ubuntu 20.04", "x86_64", ubuntu, "focal", _UBUNTU),
    Cell("Debian 11", "x86_64", _debian, "bullseye", _X86),
    Cell("Debian 12", "aarch64", _debian, "bookworm", _ARM),
    Cell("Debian 12", "x86_64", _debian, "bookworm", _X86),
    Cell("Ubuntu 24.04", "x86_64", ubuntu, "noble", _UBUNTU, "restricted by AppArmor", _RESTRICTED),
    Cell("Debian 13", "aarch64", _debian, "trixie", "linux-image-arm64-16k", processor=_WITH_16_KIB),
    Cell("Debian 13", "x86_64", _debian, "trixie", _X86),
    Cell("Debian 13", "aarch64", _debian, "trixie", _ARM),
    Cell("Debian unstable", "x86_64", _debian, "sid", _X86),
    Cell("Debian unstable", "aarch64", _debian, "sid", _ARM),
)


def try_cell(cell: Cell) -> Found:
    """Run one machine; return what was found.  Raises Problem where it cannot be run."""
    if not can_run(cell.architecture):
        raise Problem(
            f"there is no emulator for {cell.architecture}", "install qemu-system-x86, qemu-system-arm"
        )
    image = kernel(cell.distribution(), cell.release, cell.package, cell.architecture)
    machine = Machine(cell.architecture, image, memory_mib=MEMORY_MIB, processor=cell.processor)
    outcome = run(machine, _files(cell.architecture), cell.before + _SCRIPT, limit_s=LIMIT_S, hear=_show)
    if outcome.status is None and not outcome.lines:
        raise Problem(f"it did not start: {outcome.console.strip().splitlines()[-1:]}", "look at its console")
    return report.read(outcome.lines, outcome.seconds)


def _show(line: str) -> None:
    if not line.startswith("doctor"):
        say(f"  {line}")


def _files(architecture: str) -> Files:
    """Return what is in a machine: the system, Python and what tries the file, and the file."""
    program = ROOT / "dist" / f"execserver-{architecture}"
    if not program.exists():
        raise Problem(f"there is no dist/{program.name}", "build it: python3 build.py build --all")
    return {
        **system(architecture),
        **_python(architecture),
        **_below(_OWN, _tests()),
        _PROGRAM: file(program.read_bytes(), 0o755),
    }


def _python(architecture: str) -> Files:
    """Return Debian's Python, of the pinned packages, with its byte-code."""
    root = cache() / f"python-{architecture}"
    if not root.is_dir():
        fresh = root.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        suite = packages.suite(architecture, ROOT / "build")
        for pin in packages.pinned(architecture):
            unpack(suite.fetch_pinned(pin), fresh)
        _compile(fresh / "usr" / "lib" / "python3.11")
        fresh.replace(root)
    found = {}
    for name, entry in of_folder(root).items():
        path = name if name.startswith("usr/") else f"usr/{name}"
        is_wanted = path.startswith(("usr/bin/python3.11", "usr/lib/"))
        if is_wanted and not any(f"/{part}/" in path for part in _LEFT_OUT):
            found[path] = entry
    return found


def _tests() -> Path:
    """Return a folder with the parts of the checkout that run in a machine, with their byte-code."""
    folder = cache() / "tests"
    shutil.rmtree(folder, ignore_errors=True)
    for name in (
        "tests/support",
        "tests/machines",
        "tests/mcp",
        "tests/transcripts",
        "execserver/sandbox/kernel",
    ):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tests", "execserver", "execserver/sandbox"):
        shutil.copy(ROOT / name / "__init__.py", folder / name)
    for name in ("plan.py", "plan_record.py"):
        shutil.copy(ROOT / "execserver" / "sandbox" / name, folder / "execserver" / "sandbox")
    _compile(folder)
    return folder


def _below(place: str, folder: Path) -> Files:
    return {f"{place}/{name}": entry for name, entry in of_folder(folder).items()}


def _compile(folder: Path) -> None:
    """Write byte-code that is taken without a look at its source: compiling takes a slow machine minutes."""
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(folder, quiet=2, invalidation_mode=unchecked)


def chosen(words: Iterable[str]) -> list[Cell]:
    """Return the cells whose name, architecture or package holds one of the words; all without words."""
    wanted = [*words]
    return [cell for cell in CELLS if not wanted or any(word in _title(cell) for word in wanted)]


def _title(cell: Cell) -> str:
    return " ".join(filter(None, (cell.name, cell.architecture, cell.package, cell.note)))


def main(words: list[str]) -> int:
    """Run the cells; write the page when they are all of them.  Ctrl-C or SIGTERM leaves out the rest."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    rows = []
    is_over = False
    for cell in chosen(words):
        found = report.not_run("the run was ended before")
        if not is_over:
            say(_title(cell))
            try:
                found = try_cell(cell)
            except Problem as problem:
                tell(problem)
                found = report.not_run(problem.what)
            except KeyboardInterrupt:
                is_over = True
        rows.append(report.Row(cell.name, cell.architecture, cell.note, found))
    text = report.page(rows, datetime.datetime.now(datetime.UTC).date())
    if words:
        sys.stdout.write(text)
    else:
        report.PAGE.write_text(text)
        say(f"written: {report.PAGE.relative_to(ROOT)}")
    return 1 if any(row.found.failures for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
