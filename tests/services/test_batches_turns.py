"""How long the pieces of one request wait for others that are being written."""

from __future__ import annotations

import pytest

from execserver.files.part import Busy
from execserver.services.trees.batches import Turn


class Part:
    """Something that is written to by somebody else until it is let go."""

    def __init__(self) -> None:
        self.tries = 0
        self.is_held = True

    def put(self) -> None:
        self.tries += 1
        if self.is_held:
            raise Busy


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The steps that were waited, instead of waiting."""
    steps: list[float] = []
    monkeypatch.setattr("execserver.services.trees.batches.sleep", steps.append)
    monkeypatch.setattr("execserver.services.trees.batches.time.monotonic", lambda: 1000.0 + sum(steps))
    return steps


def never() -> bool:
    return False


def test_all_pieces_of_a_request_together_wait_as_long_as_one(clock: list[float]) -> None:
    turn, parts = Turn("", never), [Part() for _ in range(50)]
    for part in parts:
        with pytest.raises(Busy):
            turn.take(part.put)
    assert 10 <= sum(clock) < 11
    assert [part.tries for part in parts[1:]] == [1] * 49


def test_a_piece_that_waits_long_tries_seldom(clock: list[float]) -> None:
    part = Part()
    with pytest.raises(Busy):
        Turn("", never).take(part.put)
    assert part.tries < 100
    assert clock[0] <= 0.01


def test_a_request_of_a_client_that_has_left_waits_for_nothing(clock: list[float]) -> None:
    part, left = Part(), False
    turn = Turn("", lambda: left)

    def leave(step: float) -> None:
        nonlocal left
        left, part.is_held = True, False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("execserver.services.trees.batches.sleep", leave)
        with pytest.raises(Busy):
            turn.take(part.put)
    assert part.tries == 1
