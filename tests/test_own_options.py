from __future__ import annotations

import pytest

from execserver.cli import parse
from execserver.leaving import Leave


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


def test_without_an_option_nothing_is_changed() -> None:
    assert parse([]).settings == {}
