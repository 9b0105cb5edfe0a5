"""Signals that end a program's work, so that it cleans up: they are raised where it waits, as a Leave."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from gevent.hub import get_hub
from greenlet import getcurrent

from execserver.leaving import Leave

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BY_SIGNAL: Final = 128


def not_ignored(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Return those that this program was not started to ignore, as `nohup` has it for SIGHUP.

    To be asked before a handler is installed.
    """
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """Within it the first of these signals raises a Leave with 128 and its number; a second one kills."""
    worker = getcurrent()
    wanted = not_ignored(_ENDING)
    watchers = [get_hub().loop.signal(number) for number in wanted]

    def stop() -> None:
        for watcher in watchers:
            watcher.stop()
            watcher.close()
        watchers.clear()

    def end(number: int) -> None:
        stop()
        for each in wanted:
            signal.signal(each, signal.SIG_DFL)
        worker.throw(Leave(_BY_SIGNAL + number))

    for number, watcher in zip(wanted, watchers, strict=True):
        watcher.start(end, number)
    try:
        yield
    finally:
        stop()
