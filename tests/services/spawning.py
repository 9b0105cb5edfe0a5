"""A Spawner for tests, and what they need to look at its children."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import gevent
from gevent.event import Event
from gevent.os import nb_read

from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.services.launch.spawner import Child, Spawner, SpawnSpec
from execserver.settings import Settings
from execserver.zygote.groups import process_stat
from execserver.zygote.launch import start_zygote
from execserver.zygote.reaper import own_children
from tests.support.waiting import wait_until

PATH = {b"PATH": b"/usr/bin:/bin"}
_PR_SET_CHILD_SUBREAPER = 36


@contextmanager
def spawner(
    zygote: bool = True, command: Sequence[bytes] | None = None, **settings: float
) -> Iterator[Spawner]:
    """Run a Spawner, with a zygote already started or not; everything is ended afterwards."""
    command = command or ExecServerRuntimePaths.detect().zygote_command()
    first = start_zygote(command, 1024) if zygote else None
    made = Spawner(command, first, 1024, Settings(**settings))
    try:
        yield made
    finally:
        made.shutdown(0.0)
        # Else orphans of later tests would become children of this process.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def spec(*argv: bytes, tty: bool = False, pipe_stdin: bool = False, cwd: bytes = b"/") -> SpawnSpec:
    """Return what to start, with a usual PATH."""
    return SpawnSpec(argv, PATH, cwd, tty=tty, pipe_stdin=pipe_stdin)


class Running:
    """A child with its descriptors, read and closed by whoever asks."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.codes: list[int] = []
        self._ended = Event()
        child.on_exit(self._exited)

    def _exited(self, code: int) -> None:
        self.codes.append(code)
        self._ended.set()

    def exit_code(self, timeout: float = 20.0) -> int:
        """Wait for the exit and return its code."""
        assert self._ended.wait(timeout), f"process {self.child.pid} did not exit in {timeout} s"
        (code,) = self.codes
        return code

    def read(self, stream: str) -> bytes:
        """Read an output to its end."""
        data = b""
        try:
            while piece := nb_read(dict(self.child.outputs)[stream], 65536):
                data += piece
        except OSError:
            pass  # how a terminal ends
        return data

    def read_some(self, stream: str) -> bytes:
        """Wait for output and return what one read gives."""
        data: bytes = nb_read(dict(self.child.outputs)[stream], 65536)
        return data

    def close(self) -> None:
        """Close this side of pipes or terminal."""
        for descriptor in {*dict(self.child.outputs).values(), self.child.stdin_fd}:
            if descriptor is not None:
                os.close(descriptor)


@contextmanager
def running(by: Spawner, *argv: bytes, tty: bool = False, pipe_stdin: bool = False) -> Iterator[Running]:
    """Start a process; its descriptors are closed afterwards."""
    process = Running(by.spawn(spec(*argv, tty=tty, pipe_stdin=pipe_stdin)))
    try:
        yield process
    finally:
        process.close()


def only_zygote() -> int:
    """Return the pid of this process's one zygote."""
    (pid,) = zygotes()
    return pid


def zygotes() -> list[int]:
    """Return the pids of this process's zygotes: they lead a session, which nothing else here does."""
    return [pid for pid in sorted(own_children()) if os.getsid(pid) == pid]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Keep a process from running: a zygote that hangs in the kernel looks the same from outside."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: (process_stat(pid) or b"?")[0] == b"T")
    try:
        yield
    finally:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


def wait_gone(pid: int, timeout: float = 20.0) -> None:
    """Wait until a process has ended; a zombie has."""

    def gone() -> bool:
        stat = process_stat(pid)
        return stat is None or stat[0] == b"Z"

    wait_until(gone, timeout, pause=gevent.sleep)
