"""The signals that end one of our programs, handled in the event loop."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable

from gevent import signal_handler

END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class EndSignals:
    """Calls `act` for each such signal, except those that were ignored at the start, as under nohup."""

    def __init__(self, act: Callable[[], object], numbers: Iterable[signal.Signals] = END_SIGNALS) -> None:
        self._act = act
        self._numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        self._handlers = [signal_handler(number, act) for number in self._numbers]

    def suspend(self) -> tuple[int, int]:
        """Collect the signals in a pipe instead, for whoever comes behind an exec; return its two ends.

        This thread does not take them; another one may, in any moment up to the exec, and must lose none.
        """
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in self._numbers:
            signal.signal(number, _note)
        return reader, writer

    def resume(self, reader: int, writer: int) -> None:
        """Call `act` again, also for what came meanwhile: there was no exec.  Closes the pipe."""
        for handler in self._handlers:
            handler.cancel()
        self._handlers = [signal_handler(number, self._act) for number in self._numbers]
        signal.set_wakeup_fd(-1)
        os.close(writer)
        self.take_over(reader)

    def take_over(self, reader: int) -> None:
        """Call `act` if a signal was collected before an exec.  Closes the pipe."""
        try:
            if os.read(reader, 1):
                self._act()
        except BlockingIOError:
            pass
        finally:
            os.close(reader)


def on_end_signals(act: Callable[[], object], numbers: Iterable[signal.Signals] = END_SIGNALS) -> EndSignals:
    """Call `act` for each such signal from now on."""
    return EndSignals(act, numbers)


def _note(number: int, frame: object) -> None:
    """Take a signal, whose number is in the pipe by now."""
