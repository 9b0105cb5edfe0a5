"""The signals that end one of our programs, handled in the event loop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable

from gevent import signal_handler

END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def on_end_signals(act: Callable[[], object], numbers: Iterable[signal.Signals] = END_SIGNALS) -> None:
    """Call `act` for each such signal, except those that were ignored at the start, as under nohup."""
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal_handler(number, act)
