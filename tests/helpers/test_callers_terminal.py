"""`codex-linux-sandbox` on its caller's terminal: nothing is typed there for the caller's shell."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from execserver.sandbox.backends import landlock_only
from execserver.sandbox.kernel import landlock
from execserver.sandbox.kernel.syscalls import Kernel
from tests.support.sandboxes import managed, special
from tests.support.source import ROOT

READ_ONLY = managed(special("root", "read"))
FULL_WRITE = managed(special("root", "write"))
OPEN = managed(special("root", "read"), network="enabled")
WAYS = {
    "view": (READ_ONLY, ()),
    "view-with-network": (OPEN, ()),
    "filter-only": (FULL_WRITE, ()),
    "inner-stage": (OPEN, ("--apply-seccomp-then-exec",)),
    "landlock": (READ_ONLY, ("--use-legacy-landlock",)),
    "landlock-with-network": (OPEN, ("--use-legacy-landlock",)),
}
TYPING = """
import errno, fcntl, os, sys, termios
def tried(act, *arguments):
    try:
        act(*arguments)
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
def opened(name):
    try:
        return [os.open(name(), os.O_RDWR | os.O_NOCTTY)]
    except OSError:
        return []
for terminal in [0, *opened(lambda: "/dev/tty"), *opened(lambda: os.ttyname(0))]:
    print(*[tried(fcntl.ioctl, terminal, termios.TIOCSTI, bytes([letter])) for letter in b"id;"], end=" ")
    print(tried(fcntl.ioctl, terminal, termios.TIOCEXCL), tried(termios.tcgetattr, terminal), end=" ")
"""


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_typed_and_the_terminal_stays_usable(tmp_path: Path, way: str) -> None:
    profile, flags = WAYS[way]
    if "landlock" in way and landlock.abi(Kernel()) < landlock_only.LEAST_ABI:
        pytest.skip("this kernel has no Landlock of ABI 3 or newer")
    options = ["--sandbox-policy-cwd", str(tmp_path), "--permission-profile", json.dumps(profile), *flags]
    main = str(ROOT / "execserver" / "__main__.py")
    line = [sys.executable, "-I", main, "codex-linux-sandbox", *options, "--", sys.executable, "-c", TYPING]
    master, slave = os.openpty()
    try:
        done = subprocess.run(
            line,
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path)},
            stdin=slave,
            capture_output=True,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            timeout=40,
            check=False,
        )
        # In a view the caller's terminal has no name, and the command leads a session without one.
        terminals = 1 if way.startswith("view") else 3
        assert done.stdout.decode().split() == ["EPERM", "EPERM", "EPERM", "EPERM", "done"] * terminals, done
        os.set_blocking(slave, False)
        with pytest.raises(BlockingIOError):
            os.read(slave, 100)
    finally:
        os.close(master)
        os.close(slave)
