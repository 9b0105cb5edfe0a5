"""The pauses before reconnecting: what makes them longer, and what makes them start over."""

from __future__ import annotations

from execserver.remote.backoff import SHORT_IN_A_ROW, USEFUL_AFTER_S, Backoff


def pauses(backoff: Backoff, count: int, lasted_s: float, *, was_used: bool) -> list[float]:
    """Return the pauses behind as many connections."""
    found = []
    for _ in range(count):
        backoff.ended(lasted_s, was_used=was_used)
        found.append(backoff.next_pause())
    return found


def test_connections_without_use_are_tried_ever_less_often() -> None:
    assert pauses(Backoff(lambda: 1.0), 7, 1.0, was_used=False) == [1, 2, 4, 8, 16, 30, 30]


def test_short_connections_in_a_row_are_bought_with_longer_pauses() -> None:
    found = pauses(Backoff(lambda: 1.0), SHORT_IN_A_ROW + 6, 1.0, was_used=True)
    assert found == [1] * SHORT_IN_A_ROW + [2, 4, 8, 8, 8, 8]


def test_a_connection_that_lasts_starts_everything_over() -> None:
    backoff = Backoff(lambda: 1.0)
    pauses(backoff, 20, 1.0, was_used=True)
    assert pauses(backoff, 3, USEFUL_AFTER_S, was_used=False) == [1, 1, 1]
    assert pauses(backoff, 1, 1.0, was_used=True) == [1]


def test_one_use_ends_the_series_of_what_could_not_be_reached() -> None:
    backoff = Backoff(lambda: 1.0)
    assert [backoff.next_pause() for _ in range(4)] == [1, 2, 4, 8]
    assert pauses(backoff, 1, 1.0, was_used=True) == [1]


def test_all_are_cut_at_random_so_that_not_all_executors_come_at_once() -> None:
    assert pauses(Backoff(lambda: 0.0), 3, 1.0, was_used=False) == [0.5, 1, 2]
