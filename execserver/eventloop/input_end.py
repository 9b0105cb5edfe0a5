"""The end of an input that nobody reads, taken in the event loop: who started the program has gone."""

from __future__ import annotations

import os
from collections.abc import Callable

from gevent import get_hub

_PIECE_BYTES = 64 * 1024  # read at a turn of the loop; a flood is thrown away no faster


class InputEnd:
    """Calls `act` once, when the descriptor has come to its end or cannot be read.

    What comes before is thrown away.  A file and the null device are at their end soon.  The descriptor stays
    the caller's, who calls `close` before it is closed.
    """

    def __init__(self, descriptor: int, act: Callable[[], object]) -> None:
        self._descriptor = descriptor
        self._act = act
        self._watcher = get_hub().loop.io(descriptor, 1)
        self._watcher.start(self._read)

    def close(self) -> None:
        """Wait no longer; may be called again."""
        self._watcher.stop()
        self._watcher.close()

    def _read(self) -> None:
        try:
            is_over = not os.read(self._descriptor, _PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            is_over = True
        if is_over:
            self._watcher.stop()
            self._act()
