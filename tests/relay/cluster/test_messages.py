"""The lines that nodes send each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.relay.cluster.messages import Message, Moved, Recall, Registered, decode, encode
from execserver.relay.cluster.presence import Presence

PRESENCE = Presence("n1", "0123456789abcdef", 3, "reg_1")


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (Moved("box", PRESENCE), f"moved box {PRESENCE.text}"),
        (Moved("box", PRESENCE._replace(connected=False)), f"moved box -{PRESENCE.text}"),
        (Recall("box", PRESENCE), f"recall box {PRESENCE.text}"),
        (Registered("box", "reg_2", False), "registered box reg_2 again"),
        (Registered("box", "reg_2", True), "registered box reg_2 taken_over"),
    ],
)
def test_messages_and_their_lines(message: Message, line: str) -> None:
    assert encode(message) == line
    assert decode(line) == message


@pytest.mark.parametrize(
    "line",
    [
        *("", "moved", "moved box", "moved box x", f"moved b/x {PRESENCE.text}", f"gone box {PRESENCE.text}"),
        *("registered box reg_2", "registered box reg_2 perhaps", "registered box reg_2 again now"),
        f"recall box {PRESENCE.text} {'x' * 512}",
    ],
)
def test_other_lines_are_no_messages(line: str) -> None:
    assert decode(line) is None


@given(st.text())
def test_any_text_is_a_message_or_none(line: str) -> None:
    message = decode(line)
    assert message is None or encode(message) == line
