"""The texts in which nodes speak of themselves and of executors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.relay.cluster.presence import (
    NodeRecord,
    NodeState,
    Presence,
    node_record_of,
    presence_of,
)

EPOCH = "0123456789abcdef"
NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9.-]{0,62}\Z")
EPOCHS = st.from_regex(r"\A[0-9a-f]{16}\Z")


@given(NAMES, EPOCHS, st.integers(0, 10**18 - 1), st.from_regex(r"\A[A-Za-z0-9_-]{1,64}\Z"), st.booleans())
def test_a_presence_is_read_as_it_was_written(
    node: str, epoch: str, claim: int, registration_id: str, connected: bool
) -> None:
    presence = Presence(node, epoch, claim, registration_id, connected)
    assert presence_of(presence.text) == presence


def test_the_text_of_a_presence() -> None:
    presence = Presence("n1", EPOCH, 7, "reg_1")
    assert presence.text == f"n1:{EPOCH}:7|reg_1"
    assert presence._replace(connected=False).text == f"-n1:{EPOCH}:7|reg_1"


@given(
    EPOCHS, st.sampled_from(NodeState), st.integers(0, 10**9 - 1), st.sampled_from(["", "ws://n1.test:8080"])
)
def test_a_node_record_is_read_as_it_was_written(epoch: str, state: NodeState, count: int, url: str) -> None:
    record = NodeRecord(epoch, state, count, count, count, url)
    assert node_record_of(record.text) == record


@pytest.mark.parametrize(
    "text",
    ["", "n1", f"n1:{EPOCH}:x|reg", f"n1:{EPOCH}:1|", f"n 1:{EPOCH}:1|r", f"n1:{EPOCH}:1|r\n", "n1:E:1|r"],
)
def test_what_is_no_presence_is_none(text: str) -> None:
    assert presence_of(text) is None


@pytest.mark.parametrize(
    "text", ["", EPOCH, f"{EPOCH}|up|1|2|3", f"{EPOCH}|down|1|2|3|", f"{EPOCH}|up|1|2|3|a b"]
)
def test_what_is_no_node_record_is_none(text: str) -> None:
    assert node_record_of(text) is None
