"""How many are told to go at a time."""

from __future__ import annotations

from execserver.relay.cluster.pacing import of_drain, of_idle


def test_idle_executors_go_two_in_a_hundred_a_second_and_one_at_least() -> None:
    assert [of_idle(0, 1.0), of_idle(1, 1.0), of_idle(100, 1.0), of_idle(15_000, 1.0)] == [0, 1, 2, 300]


def test_a_drain_is_even_and_ends_in_its_time() -> None:
    left, told = 1000, []
    for step in range(40):
        count = of_drain(left, 4.0 - step * 0.1, 0.1)
        told.append(count)
        left -= count
    assert left == 0
    assert max(told) <= 26  # 25, and what rounding adds
    assert min(told[:-1]) >= 24


def test_a_drain_without_time_tells_everybody() -> None:
    assert of_drain(7, 0.0, 0.1) == 7
    assert of_drain(7, -1.0, 0.1) == 7
