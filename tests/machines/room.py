"""Runs a script in a root of its own on this machine's kernel, in namespaces: what a container is.

    outcome = run({**system("x86_64"), "root/x": file(b"...")}, "id; uname -r")

As in an emulated machine (`machine.py`), the script runs as root in busybox's sh, with /proc, /sys, /dev,
/dev/pts, /dev/shm, /tmp and /run, and without a network.  It has no right to restart the machine, to load
modules or to set the clock, as in a container.  The root lies in a temporary folder and goes with it.  Needs
root, and a kernel that lets it make namespaces.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.machines.initramfs import Files, file
from tests.machines.machine import TELL, Outcome, follow
from tools.problems import Problem

_NAMESPACES = ("--mount", "--pid", "--fork", "--kill-child", "--net", "--uts", "--ipc")
_TAKEN = ("sys_boot", "sys_module", "sys_rawio", "sys_time", "sys_pacct", "syslog", "audit_control")
_PROGRAMS = ("unshare", "setpriv", "pivot_root")
# $1 is the folder of the root.
_ENTER = """
mount --bind "$1" "$1"
cd "$1"
mkdir -p dev proc sys tmp run root var/tmp old
chmod 1777 tmp var/tmp
mount -t proc proc proc
mount -t sysfs -o ro sys sys
mount -t tmpfs -o mode=755 dev dev
for name in null zero full random urandom tty; do
    touch "dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,gid=5,mode=620,ptmxmode=666 devpts dev/pts
mount -t tmpfs -o mode=1777 shm dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
pivot_root . old
exec usr/bin/busybox chroot . /usr/bin/busybox sh /machine/init
"""
_INIT = """
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
busybox umount -l /old
busybox rmdir /old
busybox --install -s /bin
ip link set lo up
cd /root
. /machine/tell
"""


def why_not() -> str:
    """Return why no root can be made here; empty where it can."""
    if os.geteuid():
        return "only root can make one"
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_path()) is None]
    return f"there is no {missing[0]} here" if missing else ""


def run(
    files: Files, script: str, *, limit_s: float = 300, hear: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Make the root, run the script to its end, remove all.  `hear` gets each line.  Raises Problem."""
    if reason := why_not():
        raise Problem(f"no root of its own: {reason}", "run this as root, with util-linux")
    own = {
        "machine/init": file(_INIT.encode()),
        "machine/script": file(script.encode()),
        "machine/tell": file(TELL.encode()),
    }
    with tempfile.TemporaryDirectory(prefix="execserver-room-") as folder:
        root = Path(folder) / "root"
        _lay_out({**files, **own}, root)
        taken = ",".join(f"-{name}" for name in _TAKEN)
        enter = ["setpriv", f"--bounding-set={taken}", "sh", "-euc", _ENTER, "sh", str(root)]
        command = ["env", "-i", f"PATH={_path()}", "unshare", *_NAMESPACES, *enter]
        return follow(command, limit_s, hear)


def _path() -> str:
    """Return where programs of the system are, also for who has a shorter list."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"


def _lay_out(files: Files, root: Path) -> None:
    """Write files into a new folder; those above them are made."""
    root.mkdir(mode=0o755)
    for name, entry in sorted(files.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISLNK(entry.mode):
            path.symlink_to(entry.data.decode())
        elif stat.S_ISDIR(entry.mode):
            path.mkdir(exist_ok=True)
            path.chmod(stat.S_IMODE(entry.mode))
        else:
            path.write_bytes(entry.data)
            path.chmod(stat.S_IMODE(entry.mode))
