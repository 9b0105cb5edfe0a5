"""The pauses before reconnecting: what makes them longer, and what makes them start over."""

from __future__ import annotations

from execserver.remote.backoff import AWAY_IN_A_ROW, AWAY_S, SHORT_IN_A_ROW, USEFUL_AFTER_S, Backoff


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


def test_after_a_goodbye_it_takes_a_moment_only_and_not_for_ever() -> None:
    backoff = Backoff(lambda: 1.0)
    found = [backoff.next_pause(sent_away=True) for _ in range(AWAY_IN_A_ROW + 3)]
    assert found == [AWAY_S[1]] * AWAY_IN_A_ROW + [1, 2, 4]
    backoff.ended(USEFUL_AFTER_S, was_used=False)
    assert backoff.next_pause(sent_away=True) == AWAY_S[1]
    assert Backoff(lambda: 0.0).next_pause(sent_away=True) == AWAY_S[0]


def test_a_goodbye_shortens_no_series_of_failures() -> None:
    backoff = Backoff(lambda: 1.0)
    assert [backoff.next_pause(), backoff.next_pause(sent_away=True)] == [1, 2]
