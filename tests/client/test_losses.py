"""The pauses before a lost WebSocket of a relay's client is replaced."""

from __future__ import annotations

import pytest

from execserver.client.relay.losses import LONGEST_PAUSE_S, USEFUL_AFTER_S, Losses


@pytest.fixture
def losses() -> Losses:
    return Losses(lambda: 0.5)


def pauses(losses: Losses, count: int, *, brought: bool) -> list[float]:
    found = []
    for _ in range(count):
        losses.add(0.1, brought=brought)
        found.append(losses.first_pause())
    return found


def test_the_first_three_lost_at_once_are_replaced_at_once_and_then_ever_later(losses: Losses) -> None:
    assert pauses(losses, 9, brought=False) == [0.0, 0.0, 0.0, 0.1, 0.2, 0.4, 0.8, 1.6, LONGEST_PAUSE_S]
    assert pauses(losses, 20, brought=False) == [LONGEST_PAUSE_S] * 20


def test_those_that_bring_messages_are_replaced_after_a_short_pause_however_many(losses: Losses) -> None:
    assert pauses(losses, 300, brought=True) == [0.0, 0.0, 0.0] + [0.1] * 297


def test_one_that_brings_a_message_ends_the_long_pauses(losses: Losses) -> None:
    pauses(losses, 20, brought=False)
    assert pauses(losses, 1, brought=True) == [0.1]
    assert pauses(losses, 2, brought=False) == [0.2, 0.4]


def test_one_that_lasts_begins_anew(losses: Losses) -> None:
    pauses(losses, 20, brought=False)
    losses.add(USEFUL_AFTER_S, brought=False)
    assert losses.first_pause() == 0.0
    assert pauses(losses, 4, brought=False) == [0.0, 0.0, 0.0, 0.1]


def test_attempts_that_fail_double_the_pause_to_the_longest(losses: Losses) -> None:
    losses.add(0.1, brought=False)
    assert [losses.next_pause(attempt) for attempt in range(7)] == [
        0.05,
        0.1,
        0.2,
        0.4,
        0.8,
        1.6,
        LONGEST_PAUSE_S,
    ]
    assert losses.next_pause(10**6) == LONGEST_PAUSE_S


def test_each_is_up_to_a_half_shorter_or_longer() -> None:
    found = [Losses(lambda: 0.0).next_pause(1), Losses(lambda: 1.0).next_pause(1)]
    assert found == pytest.approx([0.05, 0.15])
