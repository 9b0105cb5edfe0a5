"""Where a harness goes, and what becomes of one at the wrong node."""

from __future__ import annotations

import pytest

from execserver.relay.cluster.leases import Leases
from execserver.relay.cluster.placing import Entry, Place, judge, place_of
from execserver.relay.cluster.presence import NodeRecord, NodeState, Presence

EPOCH = "0" * 16
PRESENCE = Presence("n2", EPOCH, 1, "reg_1")
RECORD = NodeRecord(EPOCH, NodeState.UP)


def known(record: NodeRecord = RECORD) -> Leases:
    leases = Leases(3.0)
    leases.saw({"n2": record}, 0.0)
    return leases


def test_an_executor_is_where_its_registration_is_connected_to_a_living_node() -> None:
    assert place_of(PRESENCE, "reg_1", known(), 0.0) == Place(PRESENCE, RECORD)


@pytest.mark.parametrize(
    "presence",
    [
        None,
        PRESENCE._replace(connected=False),
        PRESENCE._replace(registration_id="reg_0"),
        PRESENCE._replace(epoch="1" * 16),
        PRESENCE._replace(node="n3"),
    ],
)
def test_otherwise_it_is_nowhere(presence: Presence | None) -> None:
    assert place_of(presence, "reg_1", known(), 0.0) is None


def test_a_draining_node_is_one_that_the_executor_leaves() -> None:
    place = place_of(PRESENCE, "reg_1", known(RECORD._replace(state=NodeState.DRAINING)), 0.0)
    assert place is not None
    assert place.is_leaving


@pytest.mark.parametrize(
    ("is_here", "place", "hint", "entry"),
    [
        (True, None, None, Entry.ADMIT),
        (True, Place(PRESENCE, RECORD), "n2", Entry.ADMIT),
        (False, None, "n2", Entry.WRONG_NODE),
        (False, Place(PRESENCE, RECORD), None, Entry.WRONG_NODE),
        (False, Place(PRESENCE, RECORD), "n1", Entry.WRONG_NODE),  # its URL is older than the move
        (False, Place(PRESENCE, RECORD), "n2", Entry.RECALL),
        (False, Place(PRESENCE._replace(node="n1"), RECORD), "n1", Entry.WRONG_NODE),  # just lost here
    ],
)
def test_a_harness_is_judged_by_where_the_executor_is(
    is_here: bool, place: Place | None, hint: str | None, entry: Entry
) -> None:
    assert judge(is_here, place, "n1", hint) is entry
