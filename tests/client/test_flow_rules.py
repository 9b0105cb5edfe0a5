"""The rule by which all clients stop reading, without greenlets and tasks."""

from __future__ import annotations

import pytest

from execserver.client.rules.flow_rules import FlowRule, Inlet, Waiting

LIMIT = 10
PATIENCE = 3


class Party:
    """Somebody who may read and wait."""

    over = False


class Gate(FlowRule[Party]):
    """Counts how often it wakes the reader of the connection."""

    wakes = 0

    def is_over(self, party: Party) -> bool:
        return party.over

    def wake(self) -> None:
        self.wakes += 1


def full(gate: Gate, reader: Party) -> Inlet[Party]:
    inlet: Inlet[Party] = Inlet()
    inlet.read_by(reader)
    gate.update(inlet, LIMIT + 1)
    return inlet


def waits(gate: Gate, most: int) -> int:
    """Return how often the connection's reader waits with nothing new, at most so often."""
    return sum(1 for _ in zip(range(most), gate.stops(), strict=False))


def test_whatever_may_let_reading_go_on_wakes_its_reader() -> None:
    gate, party = Gate(LIMIT, 100), Party()
    inlet = full(gate, party)
    assert gate.wakes == 0
    with Waiting(gate, party):
        assert (gate.wakes, gate.must_stop()) == (1, False)
    gate.update(inlet, LIMIT)
    assert (gate.wakes, gate.must_stop()) == (2, False)


def test_a_reader_who_has_ended_or_is_gone_is_not_waited_for() -> None:
    gate, reader = Gate(LIMIT, 100), Party()
    full(gate, reader)
    with Waiting(gate, Party()):
        assert gate.must_stop()
        reader.over = True
        assert not gate.must_stop()
        reader.over = False
        del reader
        assert not gate.must_stop()


@pytest.mark.parametrize(("patience", "expected"), [(PATIENCE, PATIENCE), (None, 20)])
def test_only_with_patience_a_reader_who_takes_nothing_counts_as_waiting(
    patience: int | None, expected: int
) -> None:
    gate, reader = Gate(LIMIT, 100, patience), Party()
    inlet = full(gate, reader)
    with Waiting(gate, Party()):
        assert waits(gate, 20) == expected
    assert inlet.is_stalled == (patience is not None)
    gate.update(inlet, 0)
    assert not inlet.is_stalled


def test_patience_begins_anew_with_each_byte_taken() -> None:
    gate, reader = Gate(LIMIT, 100, PATIENCE), Party()
    inlet = full(gate, reader)
    gate.update(inlet, 50)
    with Waiting(gate, Party()):
        for turn, _ in zip(range(20), gate.stops(), strict=False):
            if turn % 2:
                gate.update(inlet, inlet.held - 1)  # a slow one
    assert (turn, inlet.is_stalled) == (19, False)


def test_patience_does_not_run_while_nobody_waits() -> None:
    gate, reader = Gate(LIMIT, 100, PATIENCE), Party()
    full(gate, reader)
    assert waits(gate, 20) == 20
