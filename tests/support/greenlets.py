"""Turns of the event loop, and failures in it that a test would not see otherwise."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any, cast

import gevent
import pytest
from gevent.hub import Hub

from tests.support.leaks import snapshot
from tests.support.waiting import wait_until


def turns(count: int = 3) -> None:
    """Let everything run that can: greenlets, callbacks, and descriptors that are ready."""
    for _ in range(count):
        gevent.idle()


def is_active(watcher: object) -> bool:
    """Tell whether the event loop looks after a watcher."""
    return bool(cast(Any, watcher).active)


@pytest.fixture(autouse=True)
def the_hub_settles() -> Iterator[None]:
    """Let greenlets and deferred closes of a test finish: nothing else runs the hub after it.

    For every test of the module, or of the folder by its `conftest`, that imports this.
    """
    before = snapshot()
    yield
    try:
        wait_until(lambda: not snapshot().leaked_since(before), 10.0, pause=gevent.sleep)
    except AssertionError:
        pass  # the fixture for all tests reports what is left


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
