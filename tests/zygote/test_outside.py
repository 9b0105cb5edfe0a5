"""Starting programs outside: what they have from their first instruction on."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from execserver.sandbox.kernel.syscalls import Kernel
from execserver.zygote.supervision.inheritance import Inherited
from execserver.zygote.supervision.outside import Outside
from execserver.zygote.supervision.trap.callers import Means
from execserver.zygote.supervision.trap.process_status import Status


class Looking(Outside):
    """Looks at a program as soon as it is started."""

    def __init__(self) -> None:
        super().__init__()
        self.niceness: list[int] = []

    def _spawn(self, *arguments: Any) -> int:
        pid = super()._spawn(*arguments)
        self.niceness.append(os.getpriority(os.PRIO_PROCESS, pid))
        return pid


def means(**values: Any) -> Means:
    """Return those of a program in `/` that inherits what this process has, but for some values."""
    own = os.getpid()
    inherited = Inherited(Kernel(), own, Status(own))
    for name, value in values.items():
        setattr(inherited, name, value)
    return Means([], {}, os.open("/", os.O_PATH | os.O_CLOEXEC), inherited)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A start leaves the process in `/`."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("more", [-1, 0, 3])
def test_a_program_has_its_niceness_before_it_runs(more: int) -> None:
    own, outside = os.nice(0), Looking()
    given = means(nice=own + more)
    pid = outside.start(b"/bin/true", [b"true"], given)
    given.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert outside.niceness == [own + max(0, more)]
    assert os.nice(0) == own


# By a spawn, by a thread, and by a fork.
@pytest.mark.parametrize("values", [{}, {"nice": 19}, {"ignored": 1 << 14}])
@pytest.mark.parametrize("file", [b"/no/such", b"/etc/passwd"])
def test_a_program_that_cannot_be_executed_is_told(values: dict[str, int], file: bytes) -> None:
    given, opened = means(**values), len(os.listdir("/proc/self/fd"))
    with pytest.raises((FileNotFoundError, PermissionError)):
        Outside().start(file, [b"x"], given)
    assert len(os.listdir("/proc/self/fd")) == opened
    given.close()


@pytest.mark.parametrize("values", [{"nice": 19}, {"ignored": 1 << 14}])
def test_what_cannot_be_inherited_starts_nothing(values: dict[str, int]) -> None:
    given = means(limits=((resource.RLIMIT_NOFILE, 5),) if "ignored" in values else (), cpus=b"0", **values)
    with pytest.raises(OSError, match="Invalid argument"):
        Outside().start(b"/bin/true", [b"x"], given)
    given.close()


def test_a_fork_gives_descriptors_their_numbers() -> None:
    given = means(ignored=1 << 14 | 1 << 9)
    reader, writer = os.pipe()
    given.descriptors.update({1: os.dup(writer), 9: os.dup(reader)})
    script = b"readlink /proc/self/fd/0; readlink /proc/self/fd/9; grep SigIgn: /proc/self/status"
    pid = Outside().start(b"/bin/sh", [b"sh", b"-c", script], given)
    given.close()
    os.close(writer)
    with open(reader) as file:
        null, pipe, _, mask = file.read().split()
    assert (null, pipe.partition(":")[0], mask) == ("/dev/null", "pipe", f"{1 << 14 | 1 << 9:016x}")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
