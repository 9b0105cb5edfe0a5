"""Which of a plugin's versions is the highest, and where it was installed from."""

from __future__ import annotations

import re

from execserver.protocol.json_text import parse_object

_SEMANTIC = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")


def compared(one: str, other: str) -> int:
    """Compare two versions: semantically where both are such versions, else as texts."""
    left, right = _SEMANTIC.fullmatch(one), _SEMANTIC.fullmatch(other)
    if left and right:
        return (_semantic(left) > _semantic(right)) - (_semantic(left) < _semantic(right))
    return (one > other) - (one < other)


def _semantic(version: re.Match[str]) -> tuple[int, int, int, bool, tuple[tuple[int, int, str], ...]]:
    """Return what semantic versions are ordered by; one without a pre-release is above those with one."""
    major, minor, patch = (int(version[index][:18]) for index in (1, 2, 3))
    parts = version[4].split(".") if version[4] else []
    before = tuple((0, int(part[:18]), "") if part.isdecimal() else (1, 0, part) for part in parts)
    return major, minor, patch, not parts, before


def remote_id(text: str) -> str | None:
    """Return the id that a plugin has where it was installed from, by the record of its installation."""
    said = parse_object(text)
    if said is None or said.get("schema_version") != 1:
        return None
    found = said.get("remote_plugin_id")
    return found if isinstance(found, str) and found else None
