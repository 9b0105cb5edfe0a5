"""A block that is left when its time is over, without an exception."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gevent import Timeout


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Run the block for at most `seconds` of waiting; the code behind it has to look what was reached."""
    timeout = Timeout.start_new(seconds)
    try:
        yield
    except Timeout as expired:
        if expired is not timeout:
            raise
        expired.__traceback__ = None  # this frame is in it, and holds it
    finally:
        timeout.close()
        del timeout  # when it is raised, its traceback holds this frame
