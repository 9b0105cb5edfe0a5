"""How long a node counts on its lease, and which others are alive."""

from __future__ import annotations

from execserver.relay.cluster.leases import Leases, OwnLease, Phase
from execserver.relay.cluster.presence import NodeRecord, NodeState

EPOCH, OTHER = "0" * 16, "1" * 16


def test_a_lease_passes_through_its_phases() -> None:
    lease = OwnLease(3.0, 30.0, 900.0, now=100.0)
    assert lease.phase(100.0) is Phase.LOST  # nothing was leased yet
    lease.renewed(100.0)
    assert [lease.phase(100.0), lease.phase(102.9), lease.phase(103.0)] == [
        Phase.HELD,
        Phase.HELD,
        Phase.LOST,
    ]
    assert [lease.phase(132.9), lease.phase(133.0)] == [Phase.LOST, Phase.ISOLATED]
    assert [lease.phase(1002.9), lease.phase(1003.0)] == [Phase.ISOLATED, Phase.OVER]
    lease.renewed(1003.0)
    assert lease.phase(1003.0) is Phase.HELD


def test_a_late_answer_to_an_early_beat_shortens_nothing() -> None:
    lease = OwnLease(3.0, 30.0, 900.0, now=0.0)
    lease.renewed(10.0)
    lease.renewed(8.0)
    assert lease.ends() == 13.0


def test_a_grace_shorter_than_the_isolation_ends_everything_first() -> None:
    lease = OwnLease(3.0, 30.0, 5.0, now=0.0)
    lease.renewed(0.0)
    assert [lease.phase(7.9), lease.phase(8.0), lease.phase(33.0)] == [Phase.LOST, Phase.OVER, Phase.OVER]


def test_a_node_is_alive_by_its_epoch_and_for_as_long_as_that_was_seen() -> None:
    leases = Leases(3.0)
    record = NodeRecord(EPOCH, NodeState.UP)
    assert leases.record("n1", EPOCH, 0.0) is None
    leases.saw({"n1": record}, 10.0)
    assert leases.record("n1", EPOCH, 12.9) == record
    assert leases.record("n1", OTHER, 10.0) is None  # the process before that one
    assert leases.record("n2", EPOCH, 10.0) is None
    assert leases.record("n1", EPOCH, 13.0) is None  # nothing is known any more
    assert [leases.count(12.9), leases.count(13.0)] == [1, 0]
    leases.saw({}, 14.0)
    assert leases.record("n1", EPOCH, 14.0) is None
