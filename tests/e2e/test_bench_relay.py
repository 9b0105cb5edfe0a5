"""`build.py bench relay`: what a run without names measures, and each row of an executor gives a figure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import cost_remote, process_memory, relay, relay_rows
from bench.crowd_rows import CROWD_ROWS
from bench.relay_ends import Executor, RelayUnderTest
from tests.support.source import ROOT

OURS = [sys.executable, "-m", "execserver"]
QUICK_ROWS = ["remote_shake", "remote_info", "remote_meta", "remote_key"]  # the others move megabytes


@pytest.mark.ours_only("both ends are ours")
def test_each_request_of_an_executor_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with RelayUnderTest(OURS, None) as service, Executor(service, OURS, str(tmp_path)) as executor:
        figures = {
            name: relay_rows.EXECUTOR_ROWS[name].measure(service, executor, True) for name in QUICK_ROWS
        }
        assert all(figure > 0 for figure in figures.values())
        assert executor.written_bytes < executor.memory_bytes


def test_a_quick_run_leaves_out_the_rows_that_take_minutes() -> None:
    whole, quick = relay.usual_rows(quick=False), relay.usual_rows(quick=True)
    assert {name for name in whole if name not in quick} == set(CROWD_ROWS)
    assert "remote_info" in quick


def test_memory_is_that_of_a_process_and_of_all_below_it() -> None:
    holder = [sys.executable, "-c", "kept = bytes(range(256)) * 65536; print(flush=True); input()"]
    script = f"import subprocess; subprocess.run({holder!r})"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        written = process_memory.process_bytes(parent.pid, ["Private_Dirty"])
        parent.communicate(b"\n", timeout=30)
    assert 16 * 2**20 < written < 64 * 2**20


@pytest.mark.ours_only("both ends are ours")
@pytest.mark.parametrize("subject", [cost_remote.EXECUTOR, cost_remote.RELAY])
def test_what_is_counted_of_both_ends_is_done(
    subject: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(cost_remote, "wait_longer", lambda: None)  # for this process: others are tested here
    with cost_remote.serving_remote(subject, cost_remote.PROGRAM) as ends:
        cost_remote.metadata(ends.url, tmp_path, 2)
        cost_remote.initialize(ends.url, tmp_path, 1)
        words = Path(f"/proc/{ends.pid}/cmdline").read_bytes().split(b"\0")
    assert (b"bench.patient_program" in words) == (subject == cost_remote.EXECUTOR)
