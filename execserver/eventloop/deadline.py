"""A time limit for a block of code, without an exception at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gevent import Timeout


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Run the block, and leave it after `seconds` if it still waits.

    The code behind the block has to check what was reached.
    """
    timeout = Timeout.start_new(seconds)
    try:
        yield
    except Timeout as expired:
        if expired is not timeout:
            raise  # the timeout of an outer block
        expired.__traceback__ = None  # it holds this frame, which holds the exception: a reference cycle
    finally:
        timeout.close()
        del timeout  # if it was raised, its traceback holds this frame
