"""JSON for small programs: text to values and back, by the interpreter's own scanner.

`json` itself would load `re`, which doubles the start time of a program that reads one text.  Accepts what
the server's decoder accepts: strict JSON in UTF-8, no lone surrogates.  The errors are those of the reference
server's parser.
"""

from __future__ import annotations

from _json import encode_basestring, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_SPACE = " \t\n\r"
# SystemError: some versions of the scanner fail so unless the `json` module is loaded.
_FAULTS = (StopIteration, ValueError, RecursionError, SystemError)
_WORDS = {None: "null", True: "true", False: "false"}
_EXACT_DIGITS = 20  # as many as the longest number of the contract has, a sign included


class NotJson(Exception):
    """The text is not JSON; the message says why and where."""


def parse(data: bytes, halves: bool = False) -> object:
    """Return the value of a JSON text.  Raises NotJson.

    Of a duplicate member the last one counts.  Integers with more digits than any in the contract become
    floats.  With `halves`, an escape may be half of a surrogate pair, as for bytes that are not UTF-8
    (surrogateescape).
    """
    try:
        return _value(data.decode(), halves)
    except _FAULTS:
        raise _damage(data) from None


def parse_object(text: str) -> dict[str, object] | None:
    """Return the JSON object that a text is, None if it is none; what is wrong with it is not searched for.

    Escapes may be halves of surrogate pairs.
    """
    value = parse_quietly(text)
    return value if isinstance(value, dict) else None


def parse_quietly(text: str) -> object:
    """Return the value of a JSON text, None if it is no JSON, as for `parse_object`."""
    try:
        return _value(text, halves=True)
    except _FAULTS:
        return None


def _value(text: str, halves: bool) -> object:
    """Return the value of a JSON text.  Raises one of _FAULTS."""
    value, end = _scan(text, len(text) - len(text.lstrip(_SPACE)))
    if text[end:].strip(_SPACE) or (not halves and "\\u" in text and _has_lone_surrogates(value)):
        raise ValueError
    return value


def quote(text: str) -> str:
    """Return a text as a JSON string; characters that are not ASCII stay as they are."""
    return encode_basestring(text)


def write(value: object) -> str:
    """Return objects, arrays, texts, integers, truth values and nulls as JSON."""
    if isinstance(value, dict):
        return f"{{{','.join([f'{quote(name)}:{write(member)}' for name, member in value.items()])}}}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(write, value))}]"
    if isinstance(value, str):
        return quote(value)
    return _WORDS[value] if value is None or isinstance(value, bool) else f"{value:d}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)  # NaN and Infinity are not JSON


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _EXACT_DIGITS else float(digits)


class _Rules:
    """The settings of the scanner, which reads them by these names."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = staticmethod(_integer)
    parse_constant = staticmethod(_refuse_constant)


_scan = make_scanner(_Rules())  # type: ignore[arg-type]  # any object with these names does


def _has_lone_surrogates(value: object) -> bool:
    """Return whether any text in a value has half of a surrogate pair."""
    pending = [value]  # a list instead of recursion: the value may be nested deep
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            try:
                item.encode()
            except UnicodeEncodeError:
                return True
        elif isinstance(item, dict):
            pending += item
            pending += item.values()
        elif isinstance(item, list):
            pending += item
    return False


def _damage(data: bytes) -> NotJson:
    from execserver.protocol.syntax import find_damage  # late: only malformed input needs it

    return NotJson(find_damage(data).reason)
