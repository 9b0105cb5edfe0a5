"""Who reads and who waits among the threads of a blocking client, for the rule of `execserver_client._flow`.

Each call is a task of its own; the thread is who goes on between its calls.
"""

from __future__ import annotations

import threading

_HERE = threading.local()


class CallingThread:
    """One thread that makes calls."""

    def __init__(self) -> None:
        self._thread = threading.current_thread()

    def done(self) -> bool:
        """Return whether the thread has ended, so that it reads nothing more."""
        return not self._thread.is_alive()


def calling_thread() -> CallingThread:
    """Return the one for the current thread; it is the same each time."""
    found: CallingThread | None = getattr(_HERE, "found", None)
    if found is None:
        found = _HERE.found = CallingThread()
    return found
