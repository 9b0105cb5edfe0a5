"""Who goes before whom: effects of one lane in their order, looks at it side by side."""

from __future__ import annotations

import random

from execserver.core.lanes import Lanes


def test_those_that_are_alone_wait_for_all_before_them() -> None:
    lanes: Lanes[str] = Lanes()
    assert lanes.enter("a", "1", alone=True) == []
    assert lanes.enter("a", "2", alone=True) == ["1"]
    assert lanes.enter("a", "3", alone=False) == ["2"]
    assert lanes.enter("a", "4", alone=False) == ["2"]
    assert sorted(lanes.enter("a", "5", alone=True)) == ["3", "4"]
    assert lanes.enter("b", "6", alone=True) == []


def test_what_is_done_is_waited_for_no_longer_and_costs_nothing() -> None:
    lanes: Lanes[str] = Lanes()
    lanes.enter("a", "1", alone=True)
    lanes.enter("a", "2", alone=False)
    lanes.leave("a", "1")
    assert lanes.enter("a", "3", alone=False) == []
    for item in "23":
        lanes.leave("a", item)
    lanes.leave("a", "unknown")
    assert len(lanes) == 0


def test_no_order_of_ends_lets_an_effect_pass_another() -> None:
    """Played at random: what runs is either one that is alone, or all shared."""
    numbers = random.Random(7)
    for _ in range(200):
        lanes: Lanes[int] = Lanes()
        alone = {item: numbers.random() < 0.5 for item in range(12)}
        waits = {item: set(lanes.enter("a", item, alone=alone[item])) for item in alone}
        done: set[int] = set()
        running: set[int] = set()
        while len(done) < len(alone):
            running |= {item for item in alone if waits[item] <= done} - done
            effects = {item for item in running if alone[item]}
            assert not effects or (running == effects and len(effects) == 1)
            assert all(later not in done for effect in effects for later in range(effect + 1, 12))
            over = numbers.choice(sorted(running))
            running.discard(over)
            done.add(over)
            lanes.leave("a", over)
        assert len(lanes) == 0
