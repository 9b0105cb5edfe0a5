"""What the supervisor waits for: descriptors and points in time, each with what to do then.

One thread and no queue: callbacks run one after another, and each has to be quick.
"""

from __future__ import annotations

import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Act = Callable[[], None]

READABLE = select.POLLIN
WRITABLE = select.POLLOUT


class Watch:
    """Descriptors that are watched; they stay their owners', who end the watch before they close them."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._acts: dict[int, Act] = {}
        self._timers: list[tuple[int, Act]] = []

    def add(self, descriptor: int, act: Act, events: int = READABLE) -> None:
        """Call `act` whenever the descriptor is ready, or has an error or an end."""
        self._poll.register(descriptor, events)
        self._acts[descriptor] = act

    def drop(self, descriptor: int) -> None:
        """End the watch of a descriptor; one that is not watched is no error."""
        if self._acts.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def after(self, seconds: float, act: Act) -> None:
        """Call `act` once, when the time has passed."""
        self._timers.append((time.monotonic_ns() + int(seconds * 1e9), act))

    def turn(self) -> None:
        """Wait until something is ready or due, and do what is to be done then."""
        ready = self._poll.poll(self._patience_ms() if self._timers else None)
        acts = [(descriptor, self._acts.get(descriptor)) for descriptor, _ in ready]
        for descriptor, act in acts:
            # An earlier one may have closed it, and the number may be somebody else's by now.
            if act is not None and self._acts.get(descriptor) is act:
                act()
        if self._timers:
            self._do_what_is_due()

    def _patience_ms(self) -> int:
        left = min(due for due, _ in self._timers) - time.monotonic_ns()
        return max(0, left // 1_000_000 + 1)

    def _do_what_is_due(self) -> None:
        now = time.monotonic_ns()
        due = [act for at, act in self._timers if at <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for act in due:
            act()
