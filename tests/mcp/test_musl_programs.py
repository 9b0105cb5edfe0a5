"""Programs linked with musl in calls of the shell tool: inside, outside, and as parents of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mcp.calling import Calls, allow
from tests.support.musl import LINKED, compiled

WORKSPACE = {"type": "workspace-write", "exclude_slash_tmp": True, "exclude_tmpdir_env_var": True}


@pytest.fixture(params=LINKED)
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The program, with musl's loader or without any."""
    return compiled(tmp_path, *LINKED[request.param])


def test_it_runs_inside_and_is_held_there(calls: Calls, program: Path) -> None:
    refused = calls.run(f"{program} touch made")
    assert (refused.exit_code, refused.output) == (1, "refused: read-only\n")
    assert not (calls.folder / "made").exists()
    written = calls.run(f"{program} touch made; {program} touch {calls.folder.parent}/made", policy=WORKSPACE)
    assert written.output == "made\nrefused: read-only\n"
    assert (calls.folder / "made").exists()


def test_an_allowed_one_runs_outside(calls: Calls, program: Path) -> None:
    result = calls.run(f"{program} touch made && echo and so on", allow(program.name))
    assert (result.exit_code, result.output) == (0, "made\nand so on\n")
    assert (calls.folder / "made").exists()


def test_what_one_starts_from_inside_runs_outside_and_it_goes_on(calls: Calls, program: Path) -> None:
    result = calls.run(f"{program} start touch made; {program} start sh -c 'exit 7'", allow("touch"))
    assert result.output == "child: 0\nchild: 7\n"
    assert (calls.folder / "made").exists()


def test_one_that_is_started_from_inside_runs_outside(calls: Calls, program: Path) -> None:
    result = calls.run(f"sh -c '{program} touch made; echo $?'", allow(program.name))
    assert result.output == "made\n0\n"
