"""`build.py bench sdk` runs, and ends what it started; its figures are another matter."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source import ROOT
from tests.support.waiting import wait_until


def command(folder: Path, *words: str) -> list[str]:
    program = folder / "ours"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m execserver "$@"\n')
    program.chmod(0o755)
    # No interpreter has SWE-ReX here: its figures are left out, which is said.
    peer = ("--swerex", "/usr/bin/false")
    return [sys.executable, "-m", "bench.sdk", "--ours", str(program), "--quick", *peer, *words]


@pytest.mark.long
def test_a_quick_round_has_figures_of_our_three_ways(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "--only", "run_true,memory"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    figure = r"[\d.e+-]+"
    for name, unit in (("run true p50", "ms"), ("run_true, CPU", "s"), ("memory of an open process", "KiB")):
        wanted = rf"^\| {name} \| {unit} \| {figure} \| {figure} \| {figure} \|  \| {figure} \|  \|$"
        assert re.search(wanted, done.stdout, re.MULTILINE), done.stdout
    assert "- run_true by swerex: SWE-ReX's server does not start" in done.stdout


@pytest.mark.long
def test_a_quick_round_times_the_fixture(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "--only", "execbox"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    rows = dict(
        re.findall(r"^\| (.*?) \| ms \|  \|  \| ([\d.e+-]+) \|  \|  \|  \|$", done.stdout, re.MULTILINE)
    )
    server, bare = float(rows["execbox, set-up"]), float(rows["`python -c pass` beside it"])
    assert 0 < bare < server, done.stdout  # a server is an interpreter, too


@pytest.mark.long
def test_nothing_is_left_of_a_round_that_is_told_to_end(tmp_path: Path) -> None:
    mark = f"a round of {tmp_path}"  # in the environment of all that it starts
    bench = subprocess.Popen(
        command(tmp_path, "--only", "run_true", "--rounds", "1000"),
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "BENCH_MARK": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert bench.stderr is not None
    while not bench.stderr.readline().startswith("round 1/1000 run_true asyncio"):
        assert bench.poll() is None
    bench.send_signal(signal.SIGTERM)
    bench.stderr.close()
    assert bench.wait(30) == 128 + signal.SIGTERM
    # A server's own processes see its end, and end by themselves.
    wait_until(lambda: marked(mark) == [], 30.0)
    assert list(tmp_path.glob("bench-*")) == []


def marked(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                text = (entry / "environ").read_bytes()
            except OSError:
                continue  # it has ended, or belongs to another user
            if mark.encode() in text:
                found.append(int(entry.name))
    return found
