"""What the file tools of agents do with a text: its lines, and one string in the place of another."""

from __future__ import annotations

from collections.abc import Sequence


def lines_of(text: str, first: int, last: int) -> str:
    """Return the lines `first` to `last`, counted from 1; a `last` below 1 is the end."""
    lines = text.split("\n")
    return "\n".join(lines[max(0, first - 1) : last if last > 0 else len(lines)])


def line_range(view_range: Sequence[int] | None) -> tuple[int, int] | None:
    """Return the two numbers of a range.  Raises ValueError."""
    if not view_range:
        return None
    if len(view_range) != 2:
        raise ValueError("view_range must be [start_line, end_line]")
    return view_range[0], view_range[1]


def replaced(text: str, old: str, new: str, *, everywhere: bool) -> tuple[str, int]:
    """Return the text with `new` in the place of `old`, and how often.

    Raises ValueError where `old` is not there, or there more than once and not `everywhere` is meant.
    """
    if not old:
        raise ValueError("old_string is empty")
    count = text.count(old)
    if not count:
        raise ValueError("old_string not found")
    if count > 1 and not everywhere:
        raise ValueError(f"old_string appears {count} times (must be unique, or set replace_all)")
    return text.replace(old, new), count
