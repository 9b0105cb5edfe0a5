"""One group of cgroup v2: its limits, its counters, the end of all that is in it.

Processes come in by `clone3` with the group's descriptor.  Writing a pid to `cgroup.procs` instead waits for
a grace period of the kernel: 5 to 12 ms.
"""

from __future__ import annotations

import errno
import os
import signal
from itertools import islice

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE_BYTES = 64 * 1024
_MOST_READS = 1024
_KILL_ROUNDS = 50  # where the kernel has no `cgroup.kill`: each round finds what was forked during the last

MEMORY, PIDS, CPU = "memory", "pids", "cpu"
CONTROLLERS = (MEMORY, PIDS, CPU)


class ControlGroup:
    """A group that this process has made; owns its descriptor, and the group itself until `remove`."""

    __slots__ = ("fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd

    @classmethod
    def make(cls, path: str) -> ControlGroup:
        """Make a group below one that exists.  Raises OSError; nothing is left then."""
        os.mkdir(path)
        try:
            return cls.at(path)
        except OSError:
            os.rmdir(path)
            raise

    @classmethod
    def at(cls, path: str) -> ControlGroup:
        """Open a group that exists.  Raises OSError."""
        return cls(path, os.open(path, _FLAGS))

    def write(self, name: str, value: str) -> None:
        """Write one of its files.  Raises OSError."""
        fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)

    def read(self, name: str) -> str:
        """Return what one of its files says; empty where there is none."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.fd)
        except OSError:
            return ""
        try:
            # The kernel gives a page at a time, so a long list of processes takes several reads.
            parts = iter(lambda: os.read(fd, _FILE_BYTES), b"")
            return b"".join(islice(parts, _MOST_READS)).decode()
        except OSError:
            return ""
        finally:
            os.close(fd)

    def limit(self, memory_bytes: int = 0, processes: int = 0, cpu_percent: int = 0) -> None:
        """Set what is not 0; all that is in it counts together.  Raises OSError."""
        if memory_bytes:
            self.write("memory.max", str(memory_bytes))
            try:
                self.write("memory.swap.max", "0")
            except FileNotFoundError:
                pass  # a kernel without swap
        if processes:
            self.write("pids.max", str(processes))
        if cpu_percent:
            self.write("cpu.max", f"{cpu_percent * 1000} 100000")

    def end_as_one(self) -> None:
        """Have the kernel end all of it when it must end one for want of memory.  Raises OSError."""
        # Else a shell lives on without the one program that was the point of it.
        self.write("memory.oom.group", "1")

    def numbers(self, name: str) -> dict[str, int]:
        """Return the counters of one of its files by their names; empty where there is none."""
        words = [line.split() for line in self.read(name).splitlines()]
        return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}

    def number(self, name: str) -> int | None:
        """Return the number in one of its files; None where there is none."""
        text = self.read(name).strip()
        return int(text) if text.isdigit() else None

    @property
    def cpu_ms(self) -> int:
        """The CPU time of all that is or was in it."""
        return self.numbers("cpu.stat").get("usage_usec", 0) // 1000

    @property
    def ooms(self) -> int:
        """How often its own memory limit was reached, and memory had to be taken from somebody."""
        return self.numbers("memory.events.local").get("oom", 0)

    @property
    def is_populated(self) -> bool:
        """True while a process is in it, or in a group below."""
        return self.numbers("cgroup.events").get("populated", 0) != 0

    @property
    def pids(self) -> list[int]:
        """The processes in it, not those in groups below."""
        return [int(word) for word in self.read("cgroup.procs").split()]

    def kill(self) -> None:
        """Kill all that is in it and below, and what is being forked there."""
        try:
            self.write("cgroup.kill", "1")
        except FileNotFoundError:  # before Linux 5.14
            self._kill_one_by_one()
        except OSError:
            pass  # removed meanwhile, so there is nothing in it

    def remove(self) -> bool:
        """Remove it if nothing is in it; return whether it is gone, with its descriptor."""
        try:
            os.rmdir(self.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
                return False
            raise
        os.close(self.fd)
        return True

    def _kill_one_by_one(self) -> None:
        for _ in range(_KILL_ROUNDS):
            pids = [pid for folder in (self.path, *_below(self.path)) for pid in _pids_in(folder)]
            if not pids:
                return
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass  # ended meanwhile


def remove_tree(path: str) -> None:
    """Remove a group with all below that are empty."""
    for folder in [*_below(path), path]:
        try:
            os.rmdir(folder)
        except OSError:
            pass


def _below(path: str) -> list[str]:
    """Return the groups below one, the deepest first."""
    return [folder for folder, _, _ in os.walk(path, topdown=False) if folder != path]


def _pids_in(folder: str) -> list[int]:
    try:
        with open(os.path.join(folder, "cgroup.procs"), "rb") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []
