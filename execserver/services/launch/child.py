"""One started process as the server knows it, and the descriptors made for it.

The caller of `Spawner.spawn` owns `outputs` and `stdin_fd`; the server's side of every pipe and pty is
non-blocking and close-on-exec.  The exit may arrive before `on_exit` is called; it is kept until then.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from execserver.protocol.resource_limits import ResourceUsage

if TYPE_CHECKING:
    from execserver.handover.records import PackedProcess

_SIGKILL = 9


class Child:
    """A process that leads its own session and process group.

    `pid` is 0 until the zygote reports it.  `outputs` holds pairs of stream name and descriptor; `stdin_fd`
    takes its input or is None.  With a tty, the one descriptor in `outputs` is also `stdin_fd` and
    `master_fd`.
    """

    def __init__(self, child_id: int, tty: bool, streams: Streams, signaller: Signaller) -> None:
        self.child_id = child_id
        self.pid = 0
        self.tty = tty
        self.stdin_fd = streams.stdin_fd
        self.outputs = streams.outputs
        self.master_fd = streams.outputs[0][1] if tty else None
        self.wait_status: int | None = None
        self.survivors = False
        self.is_lost = False  # the real status is not known
        self.cpu_us = self.peak_bytes = 0
        self._signaller = signaller
        self._on_exit: Callable[[int], None] | None = None

    @classmethod
    def handed_over(cls, child_id: int, pid: int, tty: bool, signaller: Signaller) -> Child:
        """Return a child that another server has started; `adopt` gives it its descriptors, if it has any."""
        child = cls(child_id, False, Streams(), signaller)
        child.pid, child.tty = pid, tty
        return child

    def adopt(self, outputs: list[tuple[str, int]]) -> None:
        """Take over the outputs that have not ended."""
        self.outputs = outputs
        self.master_fd = outputs[0][1] if self.tty and outputs else None

    @property
    def exited(self) -> bool:
        """True once the process was reaped."""
        return self.wait_status is not None

    @property
    def exit_code(self) -> int | None:
        """Exit status 0-255, or 128+N if signal N ended the process; None while it runs."""
        return None if self.wait_status is None else exit_code(self.wait_status)

    @property
    def zygote(self) -> int:
        """The pid of the zygote that started the process."""
        return self._signaller.pid

    @property
    def killed_by(self) -> int:
        """The signal that ended the process; 0 while it runs or after an exit of its own."""
        return 0 if self.wait_status is None else self.wait_status & 0x7F

    def on_exit(self, callback: Callable[[int], None]) -> None:
        """Register `callback(exit_code)`, called once; at once if the process has already exited.

        The greenlet that reads the zygote's records calls it, so it must neither block nor raise.
        """
        if self.wait_status is not None:
            callback(exit_code(self.wait_status))
        else:
            self._on_exit = callback

    def signal(self, signum: int) -> bool:
        """Send a signal to the process group; return whether any process was reached.

        Waits for the zygote's answer.  Also works after the process itself has exited, while others of its
        group live.  Raises OSError if the kernel refuses.
        """
        return self._signaller.signal_child(self, signum)

    def kill_group(self) -> bool:
        """Kill the process group; return whether any process was reached."""
        return self.signal(9)

    def has_used(self, cpu_us: int, peak_kib: int) -> None:
        """Take what the kernel has told with the end: CPU time, and the memory of the largest process."""
        self.cpu_us, self.peak_bytes = cpu_us, peak_kib * 1024

    def set_exited(self, status: int, survivors: bool) -> None:
        """Take the raw wait status; called once, by whoever reads the zygote's records.

        `survivors` tells whether others of the process group were left.
        """
        self.wait_status = status
        self.survivors = survivors
        callback, self._on_exit = self._on_exit, None  # dropped: it refers to the owner of this child
        if callback is not None:
            callback(exit_code(status))


class Signaller(Protocol):
    """What can signal the process group of a child."""

    @property
    def pid(self) -> int:
        """The zygote that started the child."""

    def signal_child(self, child: Child, signum: int) -> bool:
        """Send a signal to the process group that the child leads or led."""


class Streams:
    """The descriptors of one start: the server's ends and, until they are sent, the child's ends."""

    def __init__(self) -> None:
        self.stdin_fd: int | None = None
        self.outputs: list[tuple[str, int]] = []
        self.child_ends: list[int] = []
        self.slave = b""

    @classmethod
    def pipes(cls, pipe_stdin: bool) -> Streams:
        """Make stdout, stderr and, if asked, stdin; on failure raise OSError and leave nothing open."""
        # Pipes keep their 64 KiB: with larger ones output flows no faster, and each start costs 20 µs more.
        streams = cls()
        try:
            if pipe_stdin:
                theirs, ours = os.pipe2(os.O_CLOEXEC)
                streams.child_ends.append(theirs)
                streams.stdin_fd = ours
                os.set_blocking(ours, False)
            for name in ("stdout", "stderr"):
                ours, theirs = os.pipe2(os.O_CLOEXEC)
                streams.child_ends.append(theirs)
                streams.outputs.append((name, ours))
                os.set_blocking(ours, False)
        except OSError:
            streams.close()
            raise
        return streams

    @classmethod
    def terminal(cls, size: tuple[int, int]) -> Streams:
        """Make a pty of `size` (rows, columns) with the kernel's default modes; may raise OSError.

        Only the master is opened here: the child opens the slave itself, as the leader of its session.
        """
        streams = cls()
        master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK)
        streams.outputs.append(("pty", master))
        streams.stdin_fd = master
        try:
            fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))
            fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
            (number,) = struct.unpack("i", fcntl.ioctl(master, _TIOCGPTN, struct.pack("i", 0)))
        except OSError:
            streams.close()
            raise
        streams.slave = b"/dev/pts/%d" % number
        return streams

    def close_child_ends(self) -> None:
        """Close our copies of the child's ends, so that only the child holds them."""
        _close_all(self.child_ends)
        self.child_ends = []

    def close(self) -> None:
        """Close everything: nothing was started."""
        ours = {descriptor for _, descriptor in self.outputs}  # a set: a terminal is in here twice
        if self.stdin_fd is not None:
            ours.add(self.stdin_fd)
        self.close_child_ends()
        _close_all(sorted(ours))
        self.outputs = []
        self.stdin_fd = None


class _EndedZygote:
    """Stands for a zygote that has ended, and with it everything of its."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def signal_child(self, child: Child, signum: int) -> bool:
        """Reach nobody."""
        return False


def ended_child(packed: PackedProcess) -> Child:
    """Return a child whose end another server has seen, or that has ended with its zygote."""
    child = Child.handed_over(packed.child_id, packed.pid, packed.state.tty, _EndedZygote(packed.zygote))
    child.wait_status, child.survivors = packed.wait_status, packed.survivors
    child.is_lost, (child.cpu_us, child.peak_bytes) = packed.is_lost, packed.used
    if child.wait_status is None and packed.state.exit_code is None:
        child.wait_status, child.is_lost = _SIGKILL, True
    return child


# Missing in Python 3.11's `termios`: unlock the slave, and get its number.
_TIOCSPTLCK = 0x40045431
_TIOCGPTN = 0x80045430


def usage_of(child: Child, sampled_peak: int = 0) -> ResourceUsage:
    """Return what a reaped process used, as far as its parent was told; at least the peak that was seen."""
    # The parent is told nothing of what outlived the process, or was killed with it before it could wait.
    peak = max(sampled_peak, child.peak_bytes)
    return ResourceUsage(cpu_ms=child.cpu_us // 1000, peak_bytes=peak, complete=False)


def exit_code(status: int) -> int:
    """Turn a raw wait status into the contract's exit code: 0-255, or 128+N for signal N."""
    return 128 + (status & 0x7F) if status & 0x7F else status >> 8 & 0xFF


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
