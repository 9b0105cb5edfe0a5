"""How a long operation lets others go on: it calls a `pause` between two pieces of work.

The server's `pause` gives other greenlets a turn, or reports progress from a thread; a helper process passes
`no_pause`.  An operation may also be ended by a `pause` that raises.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Pause = Callable[[], None]


def no_pause() -> None:
    """Go on at once."""
