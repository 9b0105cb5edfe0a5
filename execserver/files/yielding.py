"""Cooperative yielding: a long operation calls its `pause` between two pieces of work.

The server's `pause` lets other greenlets run, or reports progress from a thread; a helper process passes
`no_pause`.  A `pause` that raises ends the operation.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Pause = Callable[[], None]


def no_pause() -> None:
    """Do nothing: the operation goes on at once."""
