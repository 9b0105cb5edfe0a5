"""How far a copy is, on a terminal only: bytes, rate, and the time left where the whole is known.

A copy has no time limit as a whole, and an answer that does not come is waited for for minutes.  So it also
says since when nothing has come, by which a person knows to wait or to leave.
"""

from __future__ import annotations

import os
import time
from typing import Final

from gevent.hub import get_hub

_EVERY_S: Final = 0.5
_LOOK_S: Final = 1.0
_STALLED_S: Final = 5.0  # without a byte; a large piece may take that long on a slow line
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_KIB: Final = 1024
_ERASE: Final = "\r\x1b[K"


class Progress:
    """One line on standard error, written at most twice a second and gone at the end."""

    def __init__(self, total: int, quiet: bool, *, may_pause: bool = False) -> None:
        """With `may_pause` it says nothing of a stall: it may be this side that has nothing to send."""
        self._total = total
        self._quiet = quiet or not os.isatty(2)
        self._done = 0
        self._begun = self._shown = self._moved = time.monotonic()
        self._visible = False
        self._timer = None
        if not (self._quiet or may_pause):
            self._timer = get_hub().loop.timer(_LOOK_S, _LOOK_S, ref=False)
            self._timer.start(self._look)

    def count(self, size: int) -> None:
        """Note that so many bytes more are through, or fewer."""
        self._done += size
        self._moved = now = time.monotonic()
        if self._quiet or now - self._shown < _EVERY_S:
            return
        self._show(now)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._moved >= _STALLED_S:
            self._show(now)

    def _show(self, now: float) -> None:
        self._shown = now
        self._visible = True
        _write(_ERASE + line(self._done, self._total, now - self._begun, now - self._moved))

    def close(self) -> None:
        """Take the line away, for good."""
        self.hide()
        if self._timer is not None:
            self._timer.stop()
            self._timer.close()
            self._timer = None

    def hide(self) -> None:
        """Take the line away, for what is to stand there."""
        if self._visible:
            self._visible = False
            _write(_ERASE)


def line(done: int, total: int, seconds: float, silent: float = 0.0) -> str:
    """Return the text for so many bytes of `total` (0: unknown) in these seconds, the last ones `silent`."""
    rate = done / seconds if seconds > 0 else 0.0
    text = f"{amount(done)}  {amount(rate)}/s"
    is_stalled = silent >= _STALLED_S
    if total > done and (rate or is_stalled):
        text += f"  {done * 100 // total} %"
    if is_stalled:
        return f"{text}  stalled for {_minutes(silent)}"
    return f"{text}  {_minutes((total - done) / rate)} left" if total > done and rate else text


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def amount(size: float) -> str:
    """Return a number of bytes for people."""
    unit = 0
    while size >= _KIB and unit < len(_UNITS) - 1:
        size, unit = size / _KIB, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def _write(text: str) -> None:
    try:
        os.write(2, text.encode())
    except OSError:
        pass
