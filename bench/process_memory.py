"""What the kernel says about the memory of a process and of those below it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def process_bytes(pid: int, kinds: Sequence[str]) -> int:
    """Return the memory of some kinds (`Pss`, `Private_Dirty`) of a process and of all below it.

    What ends meanwhile has none.  Raises OSError if the process itself is gone.
    """
    return _bytes_of(pid, kinds) + sum(_bytes_of_child(one, kinds) for one in _tree(pid)[1:])


def _bytes_of_child(pid: int, kinds: Sequence[str]) -> int:
    try:
        return _bytes_of(pid, kinds)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _tree(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(word) for thread in threads for word in _text(thread).split()]
    return [pid, *(one for child in children for one in _tree(child))]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _bytes_of(pid: int, kinds: Sequence[str]) -> int:
    fields = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]]
    return sum(int(words[1]) * 1024 for words in fields if words[0].rstrip(":") in kinds)
