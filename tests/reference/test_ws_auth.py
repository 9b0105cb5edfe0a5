"""The recordings of `--ws-auth` against the server that they were made of: ours is held to the same ones."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reference.conftest import reference_flavour
from tests.reference.install import ReferenceMissing, new_home
from tests.support.server_process import Flavour
from tests.support.ws_auth import command_lines, lay_files
from tests.support.ws_auth_play import play_cases

ENDS = [entry for entry in command_lines(Path("/")) if entry["exit"] != "timeout"]


@pytest.fixture(scope="module")
def newest() -> Iterator[Flavour]:
    """The server of 0.169.0, as it comes."""
    home = new_home()
    try:
        yield reference_flavour("0.169.0", str(home))
    except ReferenceMissing as missing:
        pytest.skip(str(missing))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def test_the_recorded_requests_have_their_recorded_answers(newest: Flavour, tmp_path: Path) -> None:
    assert play_cases(newest, tmp_path, tmp_path) == []


@pytest.mark.parametrize("index", range(len(ENDS)))
def test_a_recorded_command_line_has_its_recorded_outcome(
    newest: Flavour, tmp_path: Path, index: int
) -> None:
    lay_files("30-cli-ws-auth", tmp_path)
    (tmp_path / "cwd").mkdir()
    recorded = [entry for entry in command_lines(tmp_path) if entry["exit"] != "timeout"][index]
    done = subprocess.run(
        [*newest.argv, *recorded["argv"]],
        cwd=tmp_path / "cwd",
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "RUST_BACKTRACE": "0", **newest.env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, recorded["stderr"] in done.stderr) == (recorded["exit"], True), done.stderr
