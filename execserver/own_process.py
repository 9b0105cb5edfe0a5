"""What every program of ours that serves sets for its own process, once it has imported what it needs."""

from __future__ import annotations

import gc
import resource

_YOUNG_OBJECTS = 50_000  # allocations between two looks of the collector: one look delays a request by less


def raise_open_files_limit() -> None:
    """Take all descriptors the system grants; children keep the limit the program was started with."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def settle_collector() -> None:
    """Exempt what was imported from garbage collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 50)
