"""`build.py bench client` runs, beside a real sshd of its own; its figures are another matter."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.box.boxes import without_sshd
from tests.support.source import ROOT


@pytest.mark.long
@pytest.mark.skipif(bool(without_sshd()), reason=without_sshd() or "there is one")
def test_a_quick_round_has_figures_of_both_ways(tmp_path: Path) -> None:
    program = tmp_path / "ours"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m execserver "$@"\n')
    program.chmod(0o755)
    command = [sys.executable, "-m", "bench.person", "--ours", str(program), "--quick"]
    done = subprocess.run(
        [*command, "--network", "loopback", "--only", "true,keys"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    for name in ("run true", "key p50", "key p99"):
        assert re.search(
            rf"^\| {name} \| ms \| [\d.]+ \| [\d.]+ \|  \| [\d.]+ \|$", done.stdout, re.MULTILINE
        ), done.stdout
