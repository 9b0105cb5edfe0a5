from __future__ import annotations

import os
from types import SimpleNamespace
from typing import cast

import pytest

from execserver.core.process_state import ProcessState
from execserver.protocol.process import ProcessListEntry
from execserver.services.running.process import Process
from execserver.services.sessions.process_list import list_entry


def listed(pid: int, *, exited: bool = False, tty: bool = False) -> ProcessListEntry:
    """List a process of which only the pid is real."""
    state = ProcessState(tty=tty, retained_bytes=1)
    state.started()
    if exited:
        state.record_exit(3, signalled=False)
    process = SimpleNamespace(
        argv=["a", "b"], pid=pid, state=state, started_at=1_700_000_000.9876, ending=None
    )
    return list_entry("p", cast(Process, process))


def test_a_running_process() -> None:
    before = _cpu_ms()
    entry = listed(os.getpid(), tty=True)
    assert (entry.process_id, entry.argv, entry.pid, entry.tty) == ("p", ("a", "b"), os.getpid(), True)
    assert (entry.running, entry.exit_code, entry.started_at_ms) == (True, None, 1_700_000_000_987)
    assert entry.cpu_time_ms is not None
    assert entry.rss_bytes is not None
    assert before - 20 <= entry.cpu_time_ms <= _cpu_ms() + 20
    assert 5_000_000 < entry.rss_bytes < 5_000_000_000
    assert entry.rss_bytes % 4096 == 0


def _cpu_ms() -> float:
    """Return the CPU time of this process and its reaped children, to the kernel's tick."""
    return sum(os.times()[:4]) * 1000


def test_a_process_that_has_exited_uses_nothing() -> None:
    entry = listed(os.getpid(), exited=True)
    assert (entry.pid, entry.running, entry.exit_code) == (None, False, 3)
    assert (entry.cpu_time_ms, entry.rss_bytes) == (None, None)


def test_a_process_that_has_just_gone_uses_nothing_known() -> None:
    entry = listed(2**22 + 1)
    assert (entry.running, entry.cpu_time_ms, entry.rss_bytes) == (True, None, None)


def test_a_process_that_goes_while_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_fd: int, _size: int) -> bytes:
        raise ProcessLookupError

    monkeypatch.setattr(os, "read", read)
    entry = listed(os.getpid())
    monkeypatch.undo()
    assert (entry.cpu_time_ms, entry.rss_bytes) == (None, None)


@pytest.mark.parametrize("name", [b"sh", b"a) b (c", b") R 1 1"])
def test_the_name_of_a_process_may_hold_anything(name: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [b"%d" % number for number in range(1, 51)]
    stat = b"42 (" + name + b") S " + b" ".join(numbers) + b"\n"
    monkeypatch.setattr(os, "read", lambda _fd, _size: stat)
    entry = listed(os.getpid())
    monkeypatch.undo()
    tick_ms = 1000 // os.sysconf("SC_CLK_TCK")
    # Behind the name: the state, then numbers; utime, stime, cutime and cstime are the 14th to 17th field.
    assert entry.cpu_time_ms == (11 + 12 + 13 + 14) * tick_ms
    assert entry.rss_bytes == 21 * os.sysconf("SC_PAGE_SIZE")
