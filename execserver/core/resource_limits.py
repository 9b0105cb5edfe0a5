"""What a process may use at most: the bounds of each limit, and what the server allows of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

_KIB, _MIB = 1024, 1024 * 1024
_MOST: Final = 2**53  # what every JSON reader holds exactly
_YEAR_MS: Final = 366 * 86_400_000

MEMORY, PROCESSES, CPU_PERCENT = "memoryBytes", "processes", "cpuPercent"
WALL, CPU_TIME, FILE_BYTES, OPEN_FILES = "wallMs", "cpuMs", "fileBytes", "openFiles"
# A program needs some memory to start at all, and some descriptors for its libraries and its sandbox.
BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    MEMORY: (8 * _MIB, _MOST),
    PROCESSES: (1, 4_194_304),
    CPU_PERCENT: (1, 1_000_000),
    WALL: (1, _YEAR_MS),
    CPU_TIME: (1, _YEAR_MS),
    FILE_BYTES: (1, _MOST),
    OPEN_FILES: (16, 1_048_576),
}
OF_GROUPS: Final = (MEMORY, PROCESSES, CPU_PERCENT)  # the kernel holds them for control groups only
OF_SESSIONS: Final = OF_GROUPS


class LimitOutOfBounds(Exception):
    """A limit that no process can have here."""

    def __init__(self, name: str, value: int, low: int, high: int) -> None:
        super().__init__(f"limits.{name} must be between {low} and {high}, got {value}")


class Limits(NamedTuple):
    """The limits of one process or session, by name; `best` takes what the machine can hold."""

    values: Mapping[str, int] = {}
    best: bool = False

    def get(self, name: str) -> int:
        """Return a limit, 0 for none."""
        return self.values.get(name, 0)


NO_LIMITS: Final = Limits()


def limited(asked: Mapping[str, int | None], best: bool, caps: Limits) -> Limits:
    """Return the limits of a process: what is asked, within what the server allows, which is the default.

    Raises LimitOutOfBounds.
    """
    values = dict(caps.values)
    for name, value in asked.items():
        if value is None:
            continue
        low, high = BOUNDS[name]
        high = caps.values.get(name, high)
        if not low <= value <= high:
            raise LimitOutOfBounds(name, value, low, high)
        values[name] = value
    # A caller cannot weaken what the server was told to hold.
    return Limits(values, caps.best if caps.values else best)


def shown(name: str, value: int) -> str:
    """Return a value for people: with the largest unit that it has a whole number of."""
    if name in (MEMORY, FILE_BYTES):
        return shown_bytes(value)
    if name in (WALL, CPU_TIME):
        return f"{value // 1000} s" if value % 1000 == 0 else f"{value} ms"
    return f"{value} %" if name == CPU_PERCENT else str(value)


def shown_bytes(count: int) -> str:
    """Return a number of bytes for people."""
    for unit, size in (("GiB", _MIB * 1024), ("MiB", _MIB), ("KiB", _KIB)):
        if count >= size:
            return f"{count // size} {unit}" if count % size == 0 else f"{count / size:.1f} {unit}"
    return f"{count} bytes"
