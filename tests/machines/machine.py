"""Runs a script in a virtual machine of one kernel, and returns what it wrote.

    files = {**system("x86_64"), "root/x": file(b"...")}
    outcome = run(Machine("x86_64", kernel), files, "id; uname -r")

Everything is emulated, so it needs no right of its user and no virtualization, and takes processor time.
The machine has no disk and no network: everything is in its memory.  The script runs as root in busybox's sh,
in a tmpfs that is its root directory (a root in the initial ramdisk cannot be pivoted), with /proc, /sys,
/dev, /dev/pts, /dev/shm, /tmp, /run and cgroup v2 at /sys/fs/cgroup.  Its lines come through the serial
console as they are written; the machine is switched off behind it.  What takes too long is killed.
"""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.machines.initramfs import Files, file, pack
from tools.problems import Problem

_MARK = "@script@ "  # before each of its lines, as the kernel writes to the same console
_END = "@status@ "
_EMULATORS = {"x86_64": "qemu-system-x86_64", "aarch64": "qemu-system-aarch64"}
_CONSOLES = {"x86_64": "ttyS0", "aarch64": "ttyAMA0"}
_PLAIN_PROCESSORS = {"x86_64": "qemu64", "aarch64": "cortex-a72"}
# Emulated on a busy machine, its timer may not tick in time for the kernel, which then gives up.
_PLAIN_CLOCK = "no_timer_check"
_LINE_BYTES = 64 * 1024  # of a line; a longer one comes in parts

_INIT = """#!/bin/busybox sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
/bin/busybox mkdir -p /new
/bin/busybox mount -t tmpfs -o mode=755,size=90% tmpfs /new
for each in /*; do
    case $each in /new | /dev | /proc | /sys | /init) ;; *) /bin/busybox cp -a "$each" /new/ ;; esac
done
/bin/busybox mkdir -p /new/dev /new/proc /new/sys
/bin/busybox mount -t devtmpfs dev /new/dev
exec /bin/busybox switch_root -c /dev/console /new /machine/init
"""
_SECOND_INIT = """#!/bin/busybox sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
busybox mkdir -p /dev /proc /sys /tmp /run /root /var/tmp
busybox mount -t proc proc /proc
busybox --install -s /bin
chmod 1777 /tmp /var/tmp
mkdir -p /dev/pts /dev/shm
mount -t sysfs sys /sys
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null
ln -sf /proc/self/fd /dev/fd
ip link set lo up 2>/dev/null
echo 0 >/proc/sys/kernel/printk
cd /root
. /machine/tell
poweroff -f 2>/dev/null
echo o >/proc/sysrq-trigger
"""
# What says the lines and the status of the script, as `follow` reads them.
TELL = """{ sh /machine/script </dev/null 2>&1; echo $? >/dev/.status; } |
    while IFS= read -r line; do echo "@script@ $line"; done
echo "@status@ $(cat /dev/.status)"
"""


class Machine(NamedTuple):
    """A kernel and what it runs on.

    `more` are words of the kernel's command line.  `processor` is a model of qemu's, by default one that has
    no instructions beyond x86-64-v1 or Armv8.0.
    """

    architecture: str
    kernel: Path
    more: str = ""
    memory_mib: int = 1024
    processors: int = 1
    processor: str = ""


class Outcome(NamedTuple):
    """What a script has written, its exit status (None: it came to no end), and how long the machine ran.

    `console` is everything that was said, the kernel's words included.
    """

    lines: list[str]
    status: int | None
    seconds: float
    console: str


def can_run(architecture: str) -> bool:
    """Tell whether there is an emulator for that kind of processor."""
    return shutil.which(_EMULATORS[architecture]) is not None


def run(
    machine: Machine,
    files: Files,
    script: str,
    *,
    limit_s: float = 300,
    hear: Callable[[str], None] | None = None,
) -> Outcome:
    """Boot, run the script to its end, switch off.  `hear` gets each line as it comes.  Raises Problem."""
    own = {
        "init": file(_INIT.encode(), 0o755),
        "machine/init": file(_SECOND_INIT.encode(), 0o755),
        "machine/script": file(script.encode()),
        "machine/tell": file(TELL.encode()),
    }
    with tempfile.TemporaryDirectory(prefix="execserver-machine-") as folder:
        initial = Path(folder) / "initramfs"
        initial.write_bytes(pack({**files, **own}))
        return follow(_command(machine, initial), limit_s, hear or _nobody)


def _command(machine: Machine, initial: Path) -> list[str]:
    emulator = shutil.which(_EMULATORS[machine.architecture])
    if emulator is None:
        raise Problem(
            f"there is no {_EMULATORS[machine.architecture]} here",
            "install qemu-system-x86 and qemu-system-arm",
        )
    board = "q35" if machine.architecture == "x86_64" else "virt,gic-version=3"
    processor = machine.processor or _PLAIN_PROCESSORS[machine.architecture]
    console = _CONSOLES[machine.architecture]
    words = f"console={console} panic=-1 quiet random.trust_cpu=on {_PLAIN_CLOCK} {machine.more}"
    return [
        *(emulator, "-machine", f"{board},accel=tcg", "-cpu", processor),
        *("-smp", str(machine.processors), "-m", str(machine.memory_mib), "-nodefaults", "-nographic"),
        *("-no-reboot", "-serial", "stdio", "-device", "virtio-rng-pci"),
        *("-kernel", str(machine.kernel), "-initrd", str(initial), "-append", words),
    ]


def _nobody(line: str) -> None:
    """Hear nothing."""


def follow(command: list[str], limit_s: float, hear: Callable[[str], None]) -> Outcome:
    """Start what runs a script as `TELL` has it; return what it says, and kill it behind its end."""
    started = time.monotonic()
    lines: list[str] = []
    status: int | None = None
    said = bytearray()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as emulator:
        try:
            for line in _lines_of(emulator, started + limit_s):
                said += line + b"\n"
                text = line.decode(errors="replace").rstrip("\r")
                if _MARK in text:
                    lines.append(text.partition(_MARK)[2])
                    hear(lines[-1])
                elif _END in text:
                    word = text.partition(_END)[2].strip()
                    status = int(word) if word.isdigit() else None
                    break
        finally:
            emulator.kill()
    return Outcome(lines, status, time.monotonic() - started, said.decode(errors="replace"))


def _lines_of(emulator: subprocess.Popen[bytes], deadline: float) -> Iterator[bytes]:
    """Yield the lines that a machine writes, until it ends or the time is over."""
    assert emulator.stdout is not None
    kept = b""
    with selectors.DefaultSelector() as selector:
        selector.register(emulator.stdout, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                continue
            piece = os.read(emulator.stdout.fileno(), _LINE_BYTES)
            if not piece:
                break
            *whole, kept = (kept + piece).split(b"\n")
            yield from whole
            if len(kept) > _LINE_BYTES:
                yield kept
                kept = b""
    if kept:
        yield kept
