"""A blocking client's way to the thread in which it lives; everything that comes from the client holds it.

Any thread may call; calls of several threads run side by side.  What interrupts a waiting caller (Ctrl-C, a
signal handler that raises) cancels the call, and is raised again once the call has cleaned up, or after some
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from execserver_client.sync._loop_thread import THREADS, ClientClosed, LoopThread

P = ParamSpec("P")
T = TypeVar("T")


class Portal:
    """Open from the start, until `close`, or until nobody has it any more."""

    def __init__(self) -> None:
        self._closing: Callable[[], Coroutine[Any, Any, object]] | None = None
        self._thread: LoopThread | None = THREADS.lease()

    def adopt(self, closing: Callable[[], Coroutine[Any, Any, object]] | None) -> None:
        """Have this called in the loop when the portal closes, in place of what was adopted before."""
        self._closing = closing

    def call(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **named: P.kwargs) -> T:
        """Carry out a coroutine function in the loop and return its result, or raise its error.

        Raises ClientClosed, ForkedClient; RuntimeError in a callback, for which the loop is waiting.
        """
        return self._open().call(lambda: function(*args, **named))

    def run(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Call a plain function in the loop and return its result, or raise its error."""

        async def calling() -> T:
            return function(*args, **named)

        return self._open().call(calling)

    def close(self) -> None:
        """Close what the portal has adopted, and end the thread after the last one.  May be repeated."""
        thread, self._thread = self._thread, None
        closing, self._closing = self._closing, None
        if thread is None or not thread.is_ours():
            return
        try:
            if closing is not None:
                thread.call(closing)
        finally:
            THREADS.give_back(thread, wait=True)

    def _open(self) -> LoopThread:
        if self._thread is None:
            raise ClientClosed("this client is closed; connect again")
        return self._thread

    def __del__(self) -> None:
        thread, closing = getattr(self, "_thread", None), getattr(self, "_closing", None)
        if thread is not None and thread.is_ours():
            THREADS.abandon(thread, closing)
