from __future__ import annotations

import pytest

from execserver.cli import parse
from execserver.leaving import Leave
from execserver.settings import Settings


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0.0), ("90m", 5400.0), ("8h", 28_800.0), ("7d", 604_800.0), ("1s", 1.0)]
)
def test_a_time_to_keep_becomes_a_setting(text: str, seconds: float) -> None:
    assert parse(["--keep-max", text]).settings == {"keep_max_s": seconds}


@pytest.mark.parametrize("text", ["", "8", "8w", "-1h", "1.5h", "h", "9999999d"])
def test_what_is_no_time_is_a_mistake(text: str) -> None:
    with pytest.raises(Leave) as left:
        parse([f"--keep-max={text}"])
    rule = "expected a number and s, m, h or d, such as 8h, or 0"
    assert left.value.status == 2
    assert f"invalid value '{text}' for '--keep-max <TIME>': {rule}" in (left.value.stderr or "")


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("1M", 2**20), ("2048K", 2**21), ("1G", 2**30)])
def test_a_size_becomes_a_setting(text: str, size: int) -> None:
    assert parse(["--spool-max", text]).settings == {"spool_bytes": size}


@pytest.mark.parametrize("text", ["", "1K", "1", "1T", "-1M", "1.5M"])
def test_what_is_no_size_is_a_mistake(text: str) -> None:
    with pytest.raises(Leave, match="expected a size of at least 1M"):
        parse([f"--spool-max={text}"])


def test_without_an_option_nothing_is_changed() -> None:
    assert parse([]).settings == {}


@pytest.mark.parametrize(("text", "reach"), [("none", 0), ("loopback", 1), ("any", 2)])
def test_a_reach_becomes_a_setting_that_the_server_takes(text: str, reach: int) -> None:
    settings = parse(["--allow-forward", text]).settings
    assert Settings(**settings).forward_reach == reach


@pytest.mark.parametrize("options", [["--keep-max", "8h"], ["--spool-max", "1M"]])
def test_the_server_takes_what_the_others_become(options: list[str]) -> None:
    assert Settings(**parse(options).settings)
