"""What each of our serving programs sets for its own process."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import gc
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable

# The collector runs when this many objects were added since its last run, and then takes 0.3 ms.  Objects
# that were freed by their reference count do not count, so it runs rarely.  A full collection comes after a
# million objects at the earliest, and when the process is idle.
_YOUNG_OBJECTS = 10_000
_YOUNG_LOOKS, _OLDER_LOOKS = 10, 10

_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX = -3, -1, -8  # of mallopt
# A file of 16 MiB in one request takes four buffers of such a size.  To map them anew for each request costs
# more processor time than all the rest of it, in page faults.
_MAPPED_BYTES, _KEPT_BYTES = 32 * 1024 * 1024, 128 * 1024 * 1024
# Where nobody can tell what is kept.  With 1 MiB, reading a block of that size costs four times the CPU time.
_MAPPED_BLINDLY_BYTES, _KEPT_BLINDLY_BYTES = 4 * 1024 * 1024, 16 * 1024 * 1024
_ARENAS = 2  # one for the event loop, one for the threads of file calls

_heap_types: list[type[ctypes.Structure]] = []  # what the C library says of its heaps, once it was asked


def end_at_once_on_signals() -> None:
    """Exit with 0 on SIGTERM and SIGINT until the server, which takes a while to import, handles them."""

    def end(number: int, frame: object) -> None:
        os._exit(0)

    for number in (_signal.SIGTERM, _signal.SIGINT):  # without the enumerations of `signal`
        _signal.signal(number, end)


def raise_open_files_limit() -> None:
    """Raise the limit of open files as far as allowed; commands keep the limit the program started with."""
    import resource  # late: reading the command line does not need it

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def settle_allocator() -> None:
    """Have the C library keep freed buffers for the next ones, up to a bound; `IdleMemory` returns them.

    Where nothing says how much it keeps, have it return large ones as soon as they are freed.  By default it
    maps only buffers above a threshold, which it raises to the size of the largest one ever freed, up to 32
    MiB.  Smaller buffers are in the heap, between others, and stay there.  Other C libraries do not have the
    call.
    """
    tune = _of_c_library("mallopt")
    if tune is not None:
        is_known = free_memory() is not None
        tune(_MMAP_THRESHOLD, _MAPPED_BYTES if is_known else _MAPPED_BLINDLY_BYTES)
        tune(_TRIM_THRESHOLD, _KEPT_BYTES if is_known else _KEPT_BLINDLY_BYTES)
        tune(_ARENA_MAX, _ARENAS)


def keep_freed_buffers() -> None:
    """Have the C library keep freed buffers of up to 4 MiB, 16 MiB in all, for what moves many bytes.

    Else each piece of some 100 KiB costs page faults, half of the kernel's part of a copy.
    """
    tune = _of_c_library("mallopt")
    if tune is not None:
        tune(_MMAP_THRESHOLD, _MAPPED_BLINDLY_BYTES)
        tune(_TRIM_THRESHOLD, _KEPT_BLINDLY_BYTES)


def return_free_memory() -> None:
    """Return free pages to the system, if the C library can."""
    trim = _of_c_library("malloc_trim")
    if trim is not None:
        trim(0)


def free_memory() -> int | None:
    """Return the bytes that the C library keeps free; None if it cannot say (glibc before 2.33, others)."""
    ask = _of_c_library("mallinfo2")
    if ask is None:
        return None
    if not _heap_types:
        _heap_types.append(_mallinfo2())
    ask.restype = _heap_types[0]  # type: ignore[attr-defined]
    return int(ask().fordblks)  # type: ignore[attr-defined]


def _mallinfo2() -> type[ctypes.Structure]:
    """Return the type of what the C library says of its heaps."""
    import ctypes

    names = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks"]
    fields = [(name, ctypes.c_size_t) for name in (*names, "fordblks", "keepcost")]
    return type("Mallinfo2", (ctypes.Structure,), {"_fields_": fields})


def _of_c_library(name: str) -> Callable[..., int] | None:
    import ctypes  # late: not all users of this module need it

    found: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    return found


def settle_collector() -> None:
    """Exempt everything imported so far from garbage collection, and collect less often."""
    # Without a collection: it would find a thousand small objects, and takes a tenth of a start.
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_LOOKS, _OLDER_LOOKS)
