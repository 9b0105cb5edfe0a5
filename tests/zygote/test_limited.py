"""Starts with limits: by a fork, with the errors and the stdio of plain ones."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

from execserver.resources.control_group import ControlGroup
from execserver.resources.rlimits import ChildLimits
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.zygote.libc import Libc
from execserver.zygote.limited import LimitedStarts
from tests.resources.groups import a_group

ENV = [b"PATH=/usr/bin:/bin"]


@pytest.fixture
def starts() -> LimitedStarts:
    return LimitedStarts(Kernel(), Libc(), ChildLimits(open_files=77), -1)


@pytest.fixture
def output() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    yield reading, writing
    os.close(reading)


def printed(starts: LimitedStarts, script: bytes, output: tuple[int, int]) -> bytes:
    """Run a script and return what it printed."""
    reading, writing = output
    pid = starts.spawn_on_pipes(b"/bin/sh", [b"sh", b"-c", script], ENV, None, [writing, writing])
    os.close(writing)
    data = b""
    while piece := os.read(reading, 4096):
        data += piece
    assert os.waitpid(pid, 0)[1] == 0
    return data


def test_limits_session_stdio_and_signals(starts: LimitedStarts, output: tuple[int, int]) -> None:
    script = b"ulimit -n; ulimit -Hn; cat; cut -d' ' -f6 /proc/$$/stat; echo $$; grep SigIgn /proc/$$/status"
    numbers, *rest = printed(starts, script, output).split(b"\n", 2)
    limit, session = rest
    lines = session.split(b"\n")
    assert (numbers, limit) == (b"77", b"77")
    assert lines[0] == lines[1]  # it leads a session of its own
    assert lines[2] == b"SigIgn:\t0000000000000000"


def test_a_program_that_cannot_be_executed_is_an_error_and_leaves_nothing(
    starts: LimitedStarts, output: tuple[int, int]
) -> None:
    with pytest.raises(OSError, match=r"^\[Errno 2\]") as failed:
        starts.spawn_on_pipes(b"/no/such/program", [b"x"], ENV, None, [output[1], output[1]])
    assert failed.value.errno == errno.ENOENT
    os.close(output[1])
    assert os.read(output[0], 1) == b""


@pytest.fixture
def group() -> Iterator[ControlGroup]:
    with a_group() as made:
        yield made


# The group comes first: where there is none, no pipe is made.
def test_it_is_in_its_group_from_the_beginning(group: ControlGroup, output: tuple[int, int]) -> None:
    starts = LimitedStarts(Kernel(), Libc(), ChildLimits(grouped=True), group.fd)
    own = printed(starts, b"grep ^0: /proc/self/cgroup", output)
    assert os.path.basename(own.strip()).decode() == os.path.basename(group.path)
