"""Giving way, for a greenlet that could go on and on."""

from __future__ import annotations

import gevent

_BEFORE_ALL_OTHERS = 2  # else a loop that is always busy with something would never come back to us


def give_way() -> None:
    """Let everything that is ready have its turn, timers and sockets too.

    After `sleep(0)` the event loop may come back fifty times before it looks at those.
    """
    gevent.idle(_BEFORE_ALL_OTHERS)
