"""gevent's semaphore, without `gevent.lock`: that loads what monkey patching needs, above all `logging`.

A command on a box would take 5 ms longer for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gevent.lock import BoundedSemaphore
else:
    from gevent._semaphore import BoundedSemaphore

__all__ = ["BoundedSemaphore"]
