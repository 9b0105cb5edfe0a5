"""Tries the files of `dist/` on many kernels, each in an emulated machine, and writes docs/platforms.md.

    python -m tests.machines.matrix [WORD]...

After that come the conditions that containers and hardened systems make, on the kernel of whoever runs this.
Words choose what holds one of them in its name (`condition`: all of the latter); the page keeps what an
earlier run found of the others, with its day.  One machine runs at a time.  What cannot be run says why.
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tests.machines import additions, machine, report, room
from tests.machines.conditions import CONDITIONS, Condition
from tests.machines.contents import ONE_FILE, OWN, PROGRAM, ZIPAPP, contents
from tests.machines.initramfs import Files
from tests.machines.machine import Machine, Outcome, can_run
from tests.machines.report import CHECKS, CONDITION_CHECKS, Found, Row
from tests.machines.system import USER_ID, kernel, ubuntu
from tests.support.source import ROOT
from tools.debian import DEBIAN, Distribution
from tools.problems import Problem, say, tell

MEMORY_MIB = 1536
LIMIT_S = 1200  # for one machine; a quiet host needs two minutes
_SCARCE_MIB = 64

# An emulated machine has no source of entropy, and whoever asks for random bytes may wait for minutes.
_SEED = """import fcntl, os
random = os.open("/dev/random", os.O_WRONLY)
fcntl.ioctl(random, 0x40085203, bytes((0, 8, 0, 0, 0, 1, 0, 0)) + bytes(256))  # RNDADDENTROPY, 2,048 bits
"""
_SEEDED = f"PYTHONHASHSEED=0 python3.11 -S -c '{_SEED}'\n"
_SETUP = f"""
export PYTHONPATH=/{OWN} PATH=/usr/local/bin:/usr/bin:/bin
[ -e /usr/bin/python3 ] || ln -s python3.11 /usr/bin/python3
chown {USER_ID}:{USER_ID} /home/person
chmod 700 /root
echo "kernel $(uname -r)"
"""
_CHECKS = """
check() {{
    echo "user $1"
    su -s /bin/sh "$1" -c "cd; execserver doctor" | sed 's/^/doctor /'
    su -s /bin/sh "$1" -c "cd; python3 -B /{own}/tests/machines/inside.py /{program} {checks}"
}}
check root
check person
"""
# Unpacked before, since that is not what is asked here; then zeros fill the memory but for so much.
_SCARCE = f"""
for each in root person; do su -s /bin/sh "$each" -c "cd; execserver --version"; done
mkdir /ballast
mount -t tmpfs -o size=100% ballast /ballast
available() {{ sed -n 's/^MemAvailable: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo; }}
n=0
while [ "$(available)" -gt {_SCARCE_MIB * 1024} ]; do
    dd if=/dev/zero of=/ballast/$n bs=1M count=4 2>/dev/null
    n=$((n + 1))
done
echo "available $(available) kB"
"""


class Cell(NamedTuple):
    """One machine: its name on the page, its kernel, what is special, and a script that makes it so.

    `words` are for the kernel, `addition` returns files for the architecture, `tried` is in `dist/`.
    """

    name: str
    architecture: str
    distribution: Callable[[], Distribution]
    release: str
    package: str
    note: str = ""
    before: str = ""
    processor: str = ""
    words: str = ""
    addition: Callable[[str], Files] = additions.nothing
    tried: str = ONE_FILE


def _debian() -> Distribution:
    return DEBIAN


_X86, _ARM, _UBUNTU = "linux-image-cloud-amd64", "linux-image-cloud-arm64", "linux-image-generic"
_ARM_16 = "linux-image-arm64-16k"
_WITH_16_KIB = "max,pauth-impdef=on"  # a plain one has pages of 4 and 64 KiB only
_RESTRICTED = "echo 1 >/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
_SELINUX = f"""
mount -t selinuxfs none /sys/fs/selinux
cat /{additions.POLICY} >/sys/fs/selinux/load
echo 1 >/sys/fs/selinux/enforce
"""
_NO_USER_NAMESPACES = "chmod 4755 /usr/bin/bwrap\necho 0 >/proc/sys/user/max_user_namespaces\n"
_BUBBLEWRAP = "no user namespaces, bubblewrap with setuid"


def _trixie(architecture: str, note: str) -> Cell:
    package = _X86 if architecture == "x86_64" else _ARM
    return Cell("Debian 13", architecture, _debian, "trixie", package, note)


CELLS = (  # the oldest kernel first
    Cell("Ubuntu 18.04", "x86_64", ubuntu, "bionic", _UBUNTU),
    Cell("Ubuntu 20.04", "x86_64", ubuntu, "focal", _UBUNTU),
    Cell("Debian 11", "x86_64", _debian, "bullseye", _X86),
    Cell("Debian 12", "aarch64", _debian, "bookworm", _ARM),
    Cell("Debian 12", "x86_64", _debian, "bookworm", _X86),
    Cell("Ubuntu 24.04", "x86_64", ubuntu, "noble", _UBUNTU, "restricted by AppArmor", _RESTRICTED),
    Cell("Debian 12", "x86_64", _debian, "bookworm", _X86, f"{_SCARCE_MIB} MiB of memory left", _SCARCE),
    Cell("Debian 13", "aarch64", _debian, "trixie", _ARM_16, "large pages", processor=_WITH_16_KIB),
    Cell("Debian 12", "aarch64", _debian, "bookworm", "linux-source-6.1", "large pages, built from source"),
    Cell("Debian 13", "x86_64", _debian, "trixie", _X86),
    Cell("Debian 13", "aarch64", _debian, "trixie", _ARM),
    _trixie("x86_64", _BUBBLEWRAP)._replace(before=_NO_USER_NAMESPACES, addition=additions.bubblewrap),
    _trixie("aarch64", _BUBBLEWRAP)._replace(before=_NO_USER_NAMESPACES, addition=additions.bubblewrap),
    _trixie("x86_64", "the zipapp for all")._replace(tried=ZIPAPP),
    _trixie("aarch64", "the zipapp for all")._replace(tried=ZIPAPP),
    _trixie("x86_64", "SELinux refuses user namespaces")._replace(
        before=_SELINUX, words="security=selinux selinux=1", addition=additions.refusing_policy
    ),
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
    emulated = Machine(cell.architecture, image, cell.words, memory_mib=MEMORY_MIB, processor=cell.processor)
    script = _SEEDED + _SETUP + cell.before + checking(CHECKS)
    files = {**contents(cell.architecture, cell.tried), **cell.addition(cell.architecture)}
    return _found(machine.run(emulated, files, script, limit_s=LIMIT_S, hear=_show), CHECKS)


def try_condition(condition: Condition) -> Found:
    """Make one condition on this kernel; return what was found.  Raises Problem where it cannot be made."""
    files = condition.change(contents(os.uname().machine))
    script = _SETUP + condition.before + checking(CONDITION_CHECKS)
    return _found(room.run(files, script, limit_s=LIMIT_S, hear=_show), CONDITION_CHECKS)


def checking(checks: Iterable[str]) -> str:
    """Return the script that makes some checks as both users."""
    words = " ".join(f"'{check}'" for check in checks)
    return _CHECKS.format(own=OWN, program=PROGRAM, checks=words)


def _found(outcome: Outcome, checks: tuple[str, ...]) -> Found:
    if outcome.status is None and not outcome.lines:
        raise Problem(f"it did not start: {outcome.console.strip().splitlines()[-1:]}", "look at its console")
    return report.read(outcome.lines, outcome.seconds, checks)


def _show(line: str) -> None:
    if not line.startswith("doctor"):
        say(f"  {line}")


def chosen(words: Iterable[str]) -> list[Cell | Condition]:
    """Return what one of the words is in the name, architecture or package of; all without words."""
    wanted = [*words]
    return [
        each for each in (*CELLS, *CONDITIONS) if not wanted or any(word in _title(each) for word in wanted)
    ]


def _title(each: Cell | Condition) -> str:
    if isinstance(each, Condition):
        return f"condition {each.name}"
    return " ".join(filter(None, (each.name, each.architecture, each.package, each.note)))


def row(each: Cell | Condition, found: Found, day: str) -> Row:
    """Return what is kept of a try."""
    if isinstance(each, Condition):
        return Row(each.name, os.uname().machine, report.CONDITION, day, found)
    return Row(each.name, each.architecture, each.note, day, found)


def tried(each: Cell | Condition) -> Found:
    """Return what was found, or why nothing could be."""
    say(_title(each))
    try:
        return try_condition(each) if isinstance(each, Condition) else try_cell(each)
    except Problem as problem:
        tell(problem)
        return report.not_run(problem.what)


def main(words: list[str]) -> int:
    """Try what is chosen, and write the page after each.  Ctrl-C or SIGTERM leaves out the rest."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    wanted = [report.key(row(each, report.not_run(""), "")) for each in chosen([])]
    is_well = True
    try:
        for each in chosen(words):
            found = tried(each)
            fresh = row(each, found, datetime.datetime.now(datetime.UTC).date().isoformat())
            is_well = is_well and not found.failures
            rows = report.keep(fresh, wanted)
            report.PAGE.write_text(report.page(rows))
            say(f"written: {report.PAGE.relative_to(ROOT)}")
    except KeyboardInterrupt:
        return 130
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
