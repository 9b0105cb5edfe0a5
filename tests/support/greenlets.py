"""Turns of the event loop, and failures in it that a test would not see otherwise."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any, cast

import gevent
import pytest
from gevent.hub import Hub


def turns(count: int = 3) -> None:
    """Let everything run that can: greenlets, callbacks, and descriptors that are ready."""
    for _ in range(count):
        gevent.idle()


def is_active(watcher: object) -> bool:
    """Tell whether the event loop looks after a watcher."""
    return bool(cast(Any, watcher).active)


@pytest.fixture
def loop_failures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Fail a test in which a greenlet or a callback failed; one that expects that empties the list."""
    failures: list[str] = []

    def note(
        _hub: Hub, context: object, _kind: type, value: BaseException, where: TracebackType | None
    ) -> None:
        # What failed may be left of an earlier test, a timer for instance: only the trace tells whose it is.
        failures.append(f"{context!r}: {''.join(traceback.format_exception(None, value, where))}")

    monkeypatch.setattr(Hub, "print_exception", note)
    yield failures
    if failures:
        pytest.fail("failed in the event loop: " + "\n".join(failures), pytrace=False)
