"""`build.py bench ops` runs, and says which targets are met; its figures are another matter."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.ops import main, table
from bench.ops_rows import ROWS
from tests.support.source import ROOT


def test_a_target_is_met_by_the_median() -> None:
    (row,) = [row for row in ROWS if row.name == "scraped"]
    (title,) = row.figures
    for values, shown in (
        ([9.0, 1.0, 2.0], "2 | 1 | 9 | 2 | met"),
        ([2.5], "2.5 | 2.5 | 2.5 | 2 | missed"),
        ([], "- | - | - | 2 | "),
    ):
        assert table([row], {title: values}).splitlines()[2] == f"| {title} | ms | {shown} |"


def test_a_row_that_does_not_exist_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ours", "x", "--only", "scraped,other"]) == 2
    assert capsys.readouterr().err == "bench: there is no row other\n"


@pytest.mark.long
def test_a_quick_round_has_a_figure_for_each_target(tmp_path: Path) -> None:
    program = tmp_path / "ours"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m execserver "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "bench.ops", "--ours", str(program), "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=55,
        check=True,
    )
    for row in ROWS:
        for title in row.figures:
            wanted = rf"^\| {re.escape(title)} \| \S+ (\| [-\d.e+]*\d )+\| (met|missed) \|$"
            assert re.search(wanted, done.stdout, re.MULTILINE), done.stdout + done.stderr
