"""Starting programs outside: what they have from their first instruction on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from execserver.zygote.supervision.outside import Outside
from execserver.zygote.supervision.trap.callers import Means


class Looking(Outside):
    """Looks at a program as soon as it is started."""

    def __init__(self) -> None:
        super().__init__()
        self.niceness: list[int] = []

    def _spawn(self, *arguments: Any) -> int:
        pid = super()._spawn(*arguments)
        self.niceness.append(os.getpriority(os.PRIO_PROCESS, pid))
        return pid


@pytest.mark.parametrize("more", [None, -1, 0, 3])
def test_a_program_has_its_niceness_before_it_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: int | None
) -> None:
    monkeypatch.chdir(tmp_path)  # a start leaves the process in `/`
    own, outside = os.nice(0), Looking()
    workdir = os.open("/", os.O_PATH | os.O_CLOEXEC)
    nice = None if more is None else own + more
    pid = outside.start(b"/bin/true", [b"true"], Means([], {}, workdir, 1 << 12, None, nice))
    os.close(workdir)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert outside.niceness == [own + max(0, more or 0)]
    assert os.nice(0) == own


def test_a_nicer_program_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    workdir = os.open("/", os.O_PATH | os.O_CLOEXEC)
    means = Means([], {}, workdir, 1 << 12, None, os.nice(0) + 1)
    with pytest.raises(FileNotFoundError):
        Outside().start(b"/no/such", [b"x"], means)
    os.close(workdir)
