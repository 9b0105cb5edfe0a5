"""Plain values -> TOML text, in the form the newest reference server gives (wire contract, section 10).

Within a table plain members come first, then tables, each with its header behind a blank line; a table with
nothing but tables in it has no header.  Arrays stay on one line.  A string takes the first notation that
needs no escapes: basic, literal, and these over several lines.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from typing import TypeAlias

Value: TypeAlias = (
    "str | int | float | datetime.datetime | datetime.date | datetime.time | list[Value] | Table"
)
Table: TypeAlias = "dict[str, Value]"

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_ESCAPES['"""'] = '""\\"'
_TO_ESCAPE = re.compile(r'[\x00-\x1f\x7f"\\]')
_TO_ESCAPE_IN_LINES = re.compile(r'[\x00-\x09\x0b-\x1f\x7f\\]|"""')


def to_text(table: Table) -> str:
    """Return the text of a table."""
    return "\n".join(_tables(table, ()))


def _tables(table: Table, path: tuple[str, ...], header: str = "[%s]") -> Iterator[str]:
    """Yield a table without the tables in it, then each of those; every piece ends with a line end."""
    inner = {key: value for key, value in table.items() if _is_table(value) or _is_tables(value)}
    lines = [f"{_key(key)} = {_inline(value)}\n" for key, value in table.items() if key not in inner]
    if path and (lines or not inner or header != "[%s]"):
        lines.insert(0, header % ".".join(map(_key, path)) + "\n")
    if lines:
        yield "".join(lines)
    for key, value in inner.items():
        if isinstance(value, dict):
            yield from _tables(value, (*path, key))
        elif isinstance(value, list):
            for element in value:
                assert isinstance(element, dict)
                yield from _tables(element, (*path, key), "[[%s]]")


def _is_table(value: Value) -> bool:
    return isinstance(value, dict)


def _is_tables(value: Value) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_table, value))


def _inline(value: Value) -> str:
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, datetime.date | datetime.time):
        return _time(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    if isinstance(value, dict):
        members = ", ".join(f"{_key(key)} = {_inline(member)}" for key, member in value.items())
        return f"{{ {members} }}" if members else "{}"
    return str(value)


def _float(value: float) -> str:
    if value != value:
        return "nan"
    if value in (float("inf"), float("-inf")):
        return str(value)
    text, _, exponent = repr(value).partition("e")
    if not exponent:
        return text
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    digits, point = digits.replace(".", ""), 1 + int(exponent)
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    return f"{sign}{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"


def _time(value: datetime.date | datetime.time) -> str:
    text = value.isoformat()
    if "." in text:
        head, dot, rest = text.partition(".")
        digits = rest[:6].rstrip("0")
        text = head + dot + digits + rest[6:]
    return text[: -len("+00:00")] + "Z" if text.endswith("+00:00") else text


def _string(text: str) -> str:
    """Return a string in the first notation that needs no escapes, else escaped."""
    lines, controls, backslash = "\n" in text, _CONTROL.search(text), "\\" in text
    if not (lines or controls or backslash or '"' in text):
        return _basic(text)
    if not (lines or controls or "'" in text):
        return f"'{text}'"
    start = "\n" if lines else ""
    if not (controls or backslash or '"""' in text):
        return f'"""{start}{_escaped_in_lines(text)}"""'
    if not (controls or "'''" in text):
        return f"'''{start}{text}'''"
    return f'"""{start}{_escaped_in_lines(text)}"""' if lines else _basic(text)


def _key(key: str) -> str:
    if _BARE_KEY.fullmatch(key):
        return key
    if _CONTROL.search(key) or "\n" in key or "'" in key or not ('"' in key or "\\" in key):
        return _basic(key)
    return f"'{key}'"


def _basic(text: str) -> str:
    return '"' + _TO_ESCAPE.sub(_escape, text) + '"'


def _escaped_in_lines(text: str) -> str:
    return _TO_ESCAPE_IN_LINES.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return _ESCAPES.get(character) or f"\\u{ord(character):04X}"
