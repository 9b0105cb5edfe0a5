"""What each of our serving programs sets for its own process."""

from __future__ import annotations

import gc
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# The collector runs when this many objects were added since its last run, and then takes 0.3 ms.  Objects
# that were freed by their reference count do not count, so it runs rarely.  A full collection comes after a
# million objects at the earliest, and when the process is idle.
_YOUNG_OBJECTS = 10_000
_YOUNG_LOOKS, _OLDER_LOOKS = 10, 10

_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX = -3, -1, -8  # of mallopt
_MAPPED_BYTES = 4 * 1024 * 1024  # with 1 MiB, reading a block of that size costs four times the CPU time
_KEPT_BYTES = 16 * 1024 * 1024
_ARENAS = 2  # one for the event loop, one for the threads of file calls


def end_at_once_on_signals() -> None:
    """Exit with 0 on SIGTERM and SIGINT until the server, which takes a while to import, handles them."""

    def end(number: int, frame: object) -> None:
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def raise_open_files_limit() -> None:
    """Raise the limit of open files as far as allowed; commands keep the limit the program started with."""
    import resource  # late: reading the command line does not need it

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def settle_allocator() -> None:
    """Make the C library return large buffers to the system as soon as they are freed.

    By default it maps only buffers above a threshold, which it raises to the size of the largest one ever
    freed, up to 32 MiB.  Smaller buffers are in the heap, between others, and stay there.  Other C libraries
    do not have the call.
    """
    tune = _of_c_library("mallopt")
    if tune is not None:
        tune(_MMAP_THRESHOLD, _MAPPED_BYTES)
        tune(_TRIM_THRESHOLD, _KEPT_BYTES)
        tune(_ARENA_MAX, _ARENAS)


def return_free_memory() -> None:
    """Return free pages to the system, if the C library can."""
    trim = _of_c_library("malloc_trim")
    if trim is not None:
        trim(0)


def _of_c_library(name: str) -> Callable[..., int] | None:
    import ctypes  # late: not all users of this module need it

    found: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    return found


def settle_collector() -> None:
    """Exempt everything imported so far from garbage collection, and collect less often."""
    # Without a collection: it would find a thousand small objects, and takes a tenth of a start.
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_LOOKS, _OLDER_LOOKS)
