"""What a box says cannot command the terminal that shows it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from execserver.box.shown import shown


def test_control_characters_are_escaped() -> None:
    assert shown("a\x1b]0;x\x07b\n\r\u202eü\U0001f600") == "a\\x1b]0;x\\x07b\\x0a\\x0d\\u202eü\U0001f600"
    assert shown(b"\xff\x9b1m\xc2\x9b") == "\\xff\\x9b1m\\x9b"
    assert shown("x" * 10, 4) == "xxxx[...]"


@given(st.text(max_size=20))
def test_a_terminal_sees_printable_characters_only(text: str) -> None:
    assert shown(text).isprintable() or all(each.isprintable() or each.isspace() for each in shown(text))
    assert not any(ord(each) < 32 or 127 <= ord(each) < 160 for each in shown(text))
