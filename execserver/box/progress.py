"""How far a copy is, on a terminal only: bytes, rate, and the time left where the whole is known."""

from __future__ import annotations

import os
import time
from typing import Final

_EVERY_S: Final = 0.5
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_KIB: Final = 1024
_ERASE: Final = "\r\x1b[K"


class Progress:
    """One line on standard error, written at most twice a second and gone at the end."""

    def __init__(self, total: int, quiet: bool) -> None:
        self._total = total
        self._quiet = quiet or not os.isatty(2)
        self._done = 0
        self._begun = self._shown = time.monotonic()
        self._visible = False

    def count(self, size: int) -> None:
        """Note that so many bytes more are through, or fewer."""
        self._done += size
        now = time.monotonic()
        if self._quiet or now - self._shown < _EVERY_S:
            return
        self._shown = now
        self._visible = True
        _write(_ERASE + line(self._done, self._total, now - self._begun))

    def close(self) -> None:
        """Take the line away."""
        if self._visible:
            self._visible = False
            _write(_ERASE)


def line(done: int, total: int, seconds: float) -> str:
    """Return the text for so many bytes of `total` (0: unknown) in so many seconds."""
    rate = done / seconds if seconds > 0 else 0.0
    text = f"{amount(done)}  {amount(rate)}/s"
    if total <= done or not rate:
        return text
    left = int((total - done) / rate)
    return f"{text}  {done * 100 // total} %  {left // 60}:{left % 60:02} left"


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
