"""How many of a crowd are told to go at a time, so that they do not all come to the other nodes at once."""

from __future__ import annotations

import math

IDLE_SHARE_PER_S = 0.02  # of the idle executors of an isolated node


def of_idle(count: int, seconds: float) -> int:
    """Return how many of `count` idle executors of an isolated node go within some seconds; one at least."""
    return min(count, math.ceil(count * IDLE_SHARE_PER_S * seconds))


def of_drain(left: int, seconds_left: float, step_s: float) -> int:
    """Return how many of those that are left go in a step of a drain that has some seconds left."""
    if seconds_left <= step_s:
        return left
    return math.ceil(left * step_s / seconds_left)
