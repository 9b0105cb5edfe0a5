"""The text format in which Prometheus reads figures (version 0.0.4): counters, gauges, histograms."""

from __future__ import annotations

import os
import resource
from bisect import bisect_left

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]


class Histogram:
    """How many values were at most how large, for each set of labels."""

    __slots__ = ("_bounds", "_series")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascend; a value above the last one counts in the total only."""
        self._bounds = tuple(bounds)
        self._series: dict[Labels, tuple[list[int], list[float]]] = {}

    def add(self, value: float, labels: Labels = ()) -> None:
        """Add a value."""
        found = self._series.get(labels)
        if found is None:
            found = self._series[labels] = ([0] * (len(self._bounds) + 1), [0.0])
        buckets, total = found
        buckets[bisect_left(self._bounds, value)] += 1
        total[0] += value

    def count(self, labels: Labels = ()) -> int:
        """Return how many values were added."""
        found = self._series.get(labels)
        return 0 if found is None else sum(found[0])

    def lines(self, name: str, text: str, label_names: Labels = ()) -> list[str]:
        """Return the lines of the page."""
        lines = _head(name, text, "histogram")
        for labels, (buckets, (total,)) in sorted(self._series.items()):
            seen = 0
            for bound, here in zip((*map(_number, self._bounds), "+Inf"), buckets, strict=True):
                seen += here
                shown = _labels((*label_names, "le"), (*labels, bound))
                lines.append(f"{name}_bucket{shown} {seen}")
            own = _labels(label_names, labels)
            lines += [f"{name}_sum{own} {_number(total)}", f"{name}_count{own} {seen}"]
        return lines


def counter_lines(
    name: str, text: str, label_names: Labels, series: Iterable[tuple[Labels, float]]
) -> list[str]:
    """Return the lines of a counter; without labels it has a line before anything was counted."""
    found = sorted(series) or ([((), 0.0)] if not label_names else [])
    return [
        *_head(name, text, "counter"),
        *(f"{name}{_labels(label_names, labels)} {_number(value)}" for labels, value in found),
    ]


def gauge_lines(name: str, text: str, value: float) -> list[str]:
    """Return the lines of a gauge."""
    return [*_head(name, text, "gauge"), f"{name} {_number(value)}"]


def gauges_lines(gauges: Mapping[str, tuple[str, float]], prefix: str = "") -> list[str]:
    """Return the lines of several: name -> help text and value."""
    return [
        line for name, (text, value) in gauges.items() for line in gauge_lines(prefix + name, text, value)
    ]


def process_lines() -> list[str]:
    """Return what this process uses: CPU time, memory, descriptors."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    cpu_s = round(used.ru_utime + used.ru_stime, 3)
    return [
        *counter_lines("process_cpu_seconds_total", "CPU time in user and system mode", (), [((), cpu_s)]),
        *gauge_lines("process_resident_memory_bytes", "Resident memory", resident),
        *gauge_lines("process_open_fds", "Open descriptors", len(os.listdir("/proc/self/fd"))),
    ]


def page(lines: Iterable[str]) -> bytes:
    """Return lines as the body of an answer."""
    return ("\n".join(lines) + "\n").encode()


def _head(name: str, text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _labels(names: Labels, values: Labels) -> str:
    if not values:
        return ""
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return repr(value) if value != int(value) else str(int(value))
