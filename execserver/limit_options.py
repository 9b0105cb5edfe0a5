"""--limit-process, --limit-session and `run --limit`: their names and values, and what comes of them.

Loaded only where one is given.
"""

from __future__ import annotations

import re

from execserver.arguments import Mistake, Program
from execserver.leaving import Leave

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_SIZE = re.compile(r"([0-9]{1,12})([KMGT]?)")
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_TIME = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_COUNT = re.compile(r"[0-9]{1,9}")
_PERCENT = re.compile(r"([0-9]{1,7})%")

_MOST_BYTES = 2**53
_LEAST_MEMORY = 8 * _UNITS["M"]
_LEAST_FILES = 16


def limit_settings(program: Program, words: Iterable[str]) -> dict[str, float]:
    """Return the settings that options such as `--limit-process=memory=512M` change.

    Raises Leave for a wrong name or value; of two values of one limit the last counts.
    """
    return {f"limit_{whose}_{field}": number for whose, field, number in _read(program, words)}


def limits_of_command(program: Program, words: Iterable[str]) -> dict[str, int]:
    """Return what options such as `--limit=memory=512M` ask for: members of `limits`, and `best` (0 or 1).

    Raises Leave as `limit_settings`.
    """
    return {field: number for _, field, number in _read(program, words)}


def _read(program: Program, words: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """Yield whose limit each option is, its field, and its value."""
    for word in words:
        option, _, given = word.partition("=")
        if option not in _OPTIONS:
            continue
        whose, names = _OPTIONS[option]
        name, _, value = given.partition("=")
        if name not in names:
            raise _mistaken(program, option, given, f"one of {', '.join(names)}, each with =VALUE")
        field, read, expected = _READERS[name]
        number = read(value)
        if number is None:
            raise _mistaken(program, option, given, f"{name}= and {expected}")
        yield whose, field, number


def _mistaken(program: Program, option: str, given: str, expected: str) -> Leave:
    shown = program.table[option].shown
    return program.mistaken(Mistake(f"invalid value '{given}' for '{shown}': expected {expected}", None))


def _size(text: str, least: int = 1) -> int | None:
    found = _SIZE.fullmatch(text)
    size = int(found[1]) * _UNITS[found[2]] if found else 0
    return size if least <= size <= _MOST_BYTES else None


def _time(text: str) -> int | None:
    found = _TIME.fullmatch(text)
    return int(found[1]) * _MILLISECONDS[found[2]] or None if found else None


def _count(text: str, least: int = 1) -> int | None:
    return int(text) if _COUNT.fullmatch(text) and int(text) >= least else None


def _percent(text: str) -> int | None:
    found = _PERCENT.fullmatch(text)
    return int(found[1]) or None if found else None


def _enforcement(text: str) -> int | None:
    return {"kernel": 0, "best": 1}.get(text)


_READERS: dict[str, tuple[str, Callable[[str], int | None], str]] = {
    "memory": (
        "memory_bytes",
        lambda text: _size(text, _LEAST_MEMORY),
        "a size of at least 8M, such as 512M",
    ),
    "processes": ("processes", _count, "a number of at least 1"),
    "cpu": ("cpu_percent", _percent, "a part of one CPU of at least 1%, such as 150%"),
    "time": ("wall_ms", _time, "a number and ms, s, m, h or d, such as 90s"),
    "cpu-time": ("cpu_ms", _time, "a number and ms, s, m, h or d, such as 90s"),
    "file": ("file_bytes", _size, "a size, such as 100M"),
    "open-files": ("open_files", lambda text: _count(text, _LEAST_FILES), "a number of at least 16"),
    "enforce": ("best", _enforcement, "kernel or best"),
}
_OPTIONS = {
    "--limit": ("command", tuple(_READERS)),
    "--limit-process": ("process", tuple(_READERS)),
    "--limit-session": ("session", ("memory", "processes", "cpu")),
}
