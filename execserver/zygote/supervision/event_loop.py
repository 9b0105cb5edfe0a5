"""The supervisor's event loop: descriptors and timers, each with a callback.

There is one thread and no queue: callbacks run one after another, and each has to be quick.
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


class EventLoop:
    """Watched descriptors and timers.

    Descriptors stay their owners', who call `drop` before they close them: a closed number may be reused at
    once, and the callback would be called for the wrong descriptor.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self._acts: dict[int, Act] = {}
        self._timers: list[tuple[int, Act]] = []  # in no order; the time in ns of the monotonic clock

    def add(self, descriptor: int, act: Act, events: int = READABLE) -> None:
        """Call `act`, in place of an earlier one, whenever the descriptor is ready or has an error or end."""
        self._poll.register(descriptor, events)
        self._acts[descriptor] = act

    def drop(self, descriptor: int) -> None:
        """Watch a descriptor no longer; one that is not watched is no error."""
        if self._acts.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def after(self, seconds: float, act: Act) -> None:
        """Call `act` once, when the time has passed.

        Timers cannot be cancelled: `act` looks first whether it is still wanted.
        """
        self._timers.append((time.monotonic_ns() + int(seconds * 1e9), act))

    def turn(self) -> None:
        """Wait until something is ready or due, and make the calls for it."""
        ready = self._poll.poll(self._patience_ms() if self._timers else None)
        if len(ready) == 1:  # mostly, and then no other call can have closed it
            act = self._acts.get(ready[0][0])
            if act is not None:
                act()
            ready = []
        acts = [(descriptor, self._acts.get(descriptor)) for descriptor, _ in ready]
        for descriptor, act in acts:
            # An earlier call may have closed the descriptor, and its number may mean another one by now.
            if act is not None and self._acts.get(descriptor) is act:
                act()
        if self._timers:
            self._do_what_is_due()

    def _patience_ms(self) -> int:
        left = min(due for due, _ in self._timers) - time.monotonic_ns()
        # One more: rounded down, the poll would end before the time, and again and again.
        return max(0, left // 1_000_000 + 1)

    def _do_what_is_due(self) -> None:
        now = time.monotonic_ns()
        # Taken out first, because a callback may add a timer.
        due = [act for at, act in self._timers if at <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for act in due:
            act()
