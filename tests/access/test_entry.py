"""The recorded command lines of `--ws-auth`: which serve, and the text and status of those that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from execserver import cli
from execserver.access.command_line import listen_and_entry
from execserver.access.entry import Entry, EntryError, check_fits, make_entry
from execserver.leaving import Leave
from execserver.listen_url import Stdio, WsListen
from tests.support.ws_auth import command_lines, lay_files

NAME = "codex exec-server"


def served_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the recorded command lines; `forward`, which ours does not have, is tested with `codex`."""
    return [each for each in command_lines(folder) if each["argv"][0] != "forward"]


COUNT = len(served_lines(Path("/")))


def begun(argv: list[str]) -> None:
    """Do what the program does before it listens; raise Leave as it does."""
    options = cli.parse(argv, NAME)
    listen_and_entry(options.listen, options.access, remote=options.remote is not None)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the recorded files; the working folder is another one, as it was when recorded."""
    lay_files("30-cli-ws-auth", tmp_path)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path


@pytest.mark.parametrize("index", range(COUNT))
def test_a_recorded_command_line_has_its_recorded_outcome(place: Path, index: int) -> None:
    recorded = served_lines(place)[index]
    if recorded["exit"] == "timeout":  # it served
        begun(recorded["argv"])
        return
    with pytest.raises(Leave) as left:
        begun(recorded["argv"])
    # The usage line differs on purpose: it names what this program has.  So do the further modes.
    expected, given = (
        text.partition("\n\nUsage:")[0].replace(", execserver-token, oidc]", "]").strip()
        for text in (recorded["stderr"], left.value.stderr)
    )
    assert (left.value.status, given) == (recorded["exit"], expected)


def test_a_clock_skew_beyond_any_clock_is_refused(place: Path) -> None:
    options = {
        "--ws-auth": "signed-bearer-token",
        "--ws-shared-secret-file": f"{place}/jwt",
        "--ws-max-clock-skew-seconds": str(2**63),
    }
    with pytest.raises(EntryError, match="clock skew must fit in a signed 64-bit integer"):
        make_entry(options)


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "9" * 5000, "٣"])
def test_a_skew_that_is_no_number_is_wrong_usage(value: str) -> None:
    with pytest.raises(Leave) as left:
        cli.parse([f"--ws-max-clock-skew-seconds={value}"])
    assert left.value.status == 2


def test_an_empty_path_is_no_value() -> None:
    with pytest.raises(Leave) as left:
        cli.parse(["--ws-auth", "capability-token", "--ws-token-file", ""])
    assert left.value.stderr.startswith(
        "error: a value is required for '--ws-token-file <PATH>' but none was supplied\n"
    )


def test_without_options_nobody_is_asked() -> None:
    assert make_entry({}) == Entry()
    assert not Entry().asks
    check_fits(Entry(), Stdio(), remote=False)
    check_fits(Entry(), WsListen("127.0.0.1", 0), remote=False)
