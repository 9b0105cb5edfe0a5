"""What a client asks for, within what the server allows."""

from __future__ import annotations

import pytest

from execserver.core.resource_limits import BOUNDS, MEMORY, WALL, LimitOutOfBounds, Limits, limited, shown

MIB = 1024 * 1024


def test_what_is_not_asked_for_is_what_the_server_says() -> None:
    caps = Limits({MEMORY: 64 * MIB})
    assert limited({MEMORY: None, WALL: 5}, False, caps) == Limits({MEMORY: 64 * MIB, WALL: 5})
    assert limited({}, True, Limits()) == Limits({}, best=True)


def test_less_may_be_asked_for_and_never_more() -> None:
    caps = Limits({MEMORY: 64 * MIB})
    assert limited({MEMORY: 32 * MIB}, False, caps).get(MEMORY) == 32 * MIB
    with pytest.raises(LimitOutOfBounds) as refused:
        limited({MEMORY: 64 * MIB + 1}, False, caps)
    assert str(refused.value) == "limits.memoryBytes must be between 8388608 and 67108864, got 67108865"


@pytest.mark.parametrize("name", BOUNDS)
def test_nothing_is_too_small_or_negative(name: str) -> None:
    low, high = BOUNDS[name]
    for value in (0, -1, low - 1, high + 1, 2**70):
        with pytest.raises(LimitOutOfBounds, match=rf"limits\.{name} must be between {low} and {high}"):
            limited({name: value}, False, Limits())
    assert limited({name: low}, False, Limits()).get(name) == low


def test_a_client_cannot_weaken_how_the_server_holds_a_limit() -> None:
    assert not limited({}, True, Limits({WALL: 1})).best
    assert limited({}, False, Limits({WALL: 1}, best=True)).best


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (MEMORY, 512 * MIB, "512 MiB"),
        (MEMORY, 3 * 1024 * MIB, "3 GiB"),
        (MEMORY, 100, "100 bytes"),
        (MEMORY, MIB + MIB // 2, "1.5 MiB"),
        (WALL, 2000, "2 s"),
        (WALL, 2500, "2500 ms"),
        ("cpuPercent", 150, "150 %"),
        ("processes", 3, "3"),
    ],
)
def test_values_are_shown_to_people(name: str, value: int, text: str) -> None:
    assert shown(name, value) == text
