"""Waiting for a condition with a deadline, for what no event tells of."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    predicate: Callable[[], T], timeout: float = 20.0, *, pause: Callable[[float], object] = time.sleep
) -> T:
    """Return the first true value of `predicate`, or fail after `timeout` seconds with the last one seen.

    Tests with greenlets pass `gevent.sleep` as `pause`, so that the others go on.
    """
    deadline = time.monotonic() + timeout
    interval = 0.0005
    while not (value := predicate()):
        if time.monotonic() >= deadline:
            name = getattr(predicate, "__name__", "the condition")
            raise AssertionError(f"{name} was still {value!r} after {timeout} s")
        pause(interval)
        interval = min(interval * 2, 0.02)
    return value
