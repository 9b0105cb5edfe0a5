"""File workers without a view: the real loop and the real guards in a child of the test.

The kernel withholds nothing from them, so they show what the guards refuse by themselves.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

from execserver.sandbox.plan import Identity, Missing, SandboxPlan
from execserver.zygote.confinement import Confinement

PROGRAM = """
import _socket, sys
from execserver.sandbox.plan_record import decode_plan
from execserver.zygote.worker import serve
serve(_socket.socket(fileno=int(sys.argv[1])), decode_plan(sys.stdin.buffer.read()))
"""


class PlainWorker:
    """The process of one such worker; it is reaped by `kill` and by `exited`."""

    def __init__(self, plan: bytes, sock_fd: int, program: str = PROGRAM) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, str(sock_fd)], stdin=subprocess.PIPE, pass_fds=[sock_fd]
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(plan)
            self._process.stdin.close()
        self.pid = self._process.pid

    @property
    def exited(self) -> bool:
        """True once it has ended."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill it and reap it."""
        self._process.kill()
        self._process.wait()

    def wait(self) -> None:
        """Wait for its end."""
        self._process.wait()

    def stop(self) -> None:
        """Stop it, so that it answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)


def start_plain_worker(confinement: Confinement, sock_fd: int) -> PlainWorker:
    """Start a worker without a view; takes the place of `Spawner.start_worker`."""
    return PlainWorker(confinement.plan, sock_fd)


def identity(path: bytes) -> Identity:
    """Return device, inode and kind of a path."""
    status = os.lstat(path)
    return status.st_dev, status.st_ino, status.st_mode & 0o170000


def missing(*paths: bytes) -> tuple[Missing, ...]:
    """Return protected names that do not exist, in directories that do."""
    return tuple(Missing(path, identity(os.path.dirname(path)), True, True) for path in paths)


def plan(
    root: str = "read-only", missing: tuple[Missing, ...] = (), globs: tuple[bytes, ...] = ()
) -> SandboxPlan:
    """Return a plan of guards only."""
    return SandboxPlan(root, missing=missing, globs=globs)
