"""What every program of ours that serves sets for its own process, once it has imported what it needs."""

from __future__ import annotations

import gc
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# More objects than so many since the last look of the collector, and it looks at them: 0.3 ms.  What is freed
# by its reference count does not count, so looks are rare.  A full one comes with a million objects at the
# earliest, and when the process is idle.
_YOUNG_OBJECTS = 10_000
_YOUNG_LOOKS, _OLDER_LOOKS = 10, 10

_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX = -3, -1, -8  # of mallopt
_MAPPED_BYTES = 4 * 1024 * 1024  # at 1 MiB a read of a block of that size costs four times the processor time
_KEPT_BYTES = 16 * 1024 * 1024
_ARENAS = 2  # one for the event loop, one for the threads of file calls


def raise_open_files_limit() -> None:
    """Take all descriptors the system grants; children keep the limit the program was started with."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def settle_allocator() -> None:
    """Have large buffers of the C library given back as soon as they are freed.

    By itself it raises the size from which it maps a buffer to that of the largest one ever freed, up to
    32 MiB; what lies below lies between others, and stays.  Other C libraries do not have the call.
    """
    tune = _of_c_library("mallopt")
    if tune is not None:
        tune(_MMAP_THRESHOLD, _MAPPED_BYTES)
        tune(_TRIM_THRESHOLD, _KEPT_BYTES)
        tune(_ARENA_MAX, _ARENAS)


def return_free_memory() -> None:
    """Give the pages that hold nothing any more back to the system, where the C library can."""
    trim = _of_c_library("malloc_trim")
    if trim is not None:
        trim(0)


def _of_c_library(name: str) -> Callable[..., int] | None:
    import ctypes  # late: not all who use this module have loaded it

    found: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    return found


def settle_collector() -> None:
    """Exempt what was imported from garbage collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_LOOKS, _OLDER_LOOKS)
