"""Counters and gauges of a relay, in the text format of Prometheus.

No label names an environment: their number is not bounded, and the page must not reveal who uses the relay.
"""

from __future__ import annotations

import os
import resource
import time
from collections import Counter

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

TO_EXECUTOR, TO_HARNESS = "to_executor", "to_harness"

# Counter -> its help text.
_COUNTERS = {
    "requests": "HTTP requests by call and status",
    "registrations": "Register calls that succeeded, by outcome",
    "validations": "Validate calls by answer",
    "upgrades": "Rendezvous websockets by role and status",
    "frames": "Relay frames forwarded, by direction",
    "bytes": "Bytes of these frames",
    "dropped_frames": "Relay frames that were not forwarded, by reason",
    "resets": "Reset frames the relay made, by reason",
    "closed": "Rendezvous websockets that ended, by reason",
    "resumed_streams": "Streams that were taken up again over a new websocket",
    "held_back": "How often a sender was not read for a while, by reason",
    "engine_calls": "Calls of the shared engine, by result",
}
_LABELS = {
    "requests": ("call", "status"),
    "registrations": ("outcome",),
    "validations": ("valid",),
    "upgrades": ("role", "status"),
    "frames": ("direction",),
    "bytes": ("direction",),
    "dropped_frames": ("reason",),
    "resets": ("reason",),
    "closed": ("reason",),
    "resumed_streams": (),
    "held_back": ("reason",),
    "engine_calls": ("result",),
}


class Metrics:
    """The counters of one relay."""

    def __init__(self) -> None:
        # Counted at each frame: cheaper than `count`.
        self.frames = {TO_EXECUTOR: 0, TO_HARNESS: 0}
        self.bytes = {TO_EXECUTOR: 0, TO_HARNESS: 0}
        self._counts: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def count(self, name: str, *labels: str) -> None:
        """Add one to a counter of `_COUNTERS`; labels in the order of `_LABELS`."""
        self._counts[name, labels] += 1

    def value(self, name: str, *labels: str) -> int:
        """Return a counter."""
        if name in ("frames", "bytes"):
            return {"frames": self.frames, "bytes": self.bytes}[name][labels[0]]
        return self._counts[name, labels]

    def page(self, gauges: dict[str, tuple[str, float]]) -> bytes:
        """Return the page: counters, the given gauges (name -> help text and value), and the process."""
        lines: list[str] = []
        for name, text in _COUNTERS.items():
            full = f"execserver_relay_{name}_total"
            lines += [f"# HELP {full} {text}", f"# TYPE {full} counter"]
            lines += [f"{full}{_labels(name, labels)} {count}" for labels, count in self._series(name)]
        for name, (text, value) in gauges.items():
            full = f"execserver_relay_{name}"
            lines += [f"# HELP {full} {text}", f"# TYPE {full} gauge", f"{full} {value:g}"]
        lines += _process_lines()
        return ("\n".join(lines) + "\n").encode()

    def _series(self, name: str) -> list[tuple[tuple[str, ...], int]]:
        if name in ("frames", "bytes"):
            return [((each,), self.value(name, each)) for each in (TO_EXECUTOR, TO_HARNESS)]
        found = sorted((labels, count) for (own, labels), count in self._counts.items() if own == name)
        return found or ([((), 0)] if not _LABELS[name] else [])


def _labels(name: str, values: tuple[str, ...]) -> str:
    if not values:
        return ""
    pairs = ",".join(f'{label}="{value}"' for label, value in zip(_LABELS[name], values, strict=True))
    return f"{{{pairs}}}"


def _process_lines() -> list[str]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return [
        "# HELP process_cpu_seconds_total CPU time in user and system mode",
        "# TYPE process_cpu_seconds_total counter",
        f"process_cpu_seconds_total {used.ru_utime + used.ru_stime:.3f}",
        "# HELP process_resident_memory_bytes Resident memory",
        "# TYPE process_resident_memory_bytes gauge",
        f"process_resident_memory_bytes {resident}",
        "# HELP process_open_fds Open descriptors",
        "# TYPE process_open_fds gauge",
        f"process_open_fds {len(os.listdir('/proc/self/fd'))}",
        "# HELP execserver_relay_time_seconds The relay's clock",
        "# TYPE execserver_relay_time_seconds gauge",
        f"execserver_relay_time_seconds {time.time():.0f}",
    ]
