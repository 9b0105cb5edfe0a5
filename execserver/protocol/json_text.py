"""JSON for small programs: text to values and back by the interpreter's own scanner.

`json` itself would load `re`, which doubles the start of a program that reads one text.  Accepts what the
server's decoder accepts: strict JSON in UTF-8, no lone surrogates.  Why a text is refused is told in the
words of the reference server's parser.
"""

from __future__ import annotations

from _json import encode_basestring, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_SPACE = " \t\n\r"
_EXACT_DIGITS = 20  # as many as the largest number of the contract has, and a sign


class NotJson(Exception):
    """The text is not JSON; the message says why and where."""


def parse(data: bytes, halves: bool = False) -> object:
    """Return the value a JSON text stands for.  Raises NotJson.

    Of a member given twice the last one counts.  Integers of more digits than any the contract knows come as
    floats.  With `halves` an escape may be half of a pair, as for bytes that are no UTF-8 (surrogateescape).
    """
    try:
        text = data.decode()
        value, end = _scan(text, len(text) - len(text.lstrip(_SPACE)))
        if text[end:].strip(_SPACE) or (not halves and "\\u" in text and _has_lone_surrogates(value)):
            raise ValueError
    # SystemError: some versions of the scanner fail that way unless the `json` module is loaded.
    except (StopIteration, ValueError, RecursionError, SystemError):
        raise _damage(data) from None
    return value


def quote(text: str) -> str:
    """Return a text as a JSON string; what is not ASCII stays as it is."""
    return encode_basestring(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)  # NaN and Infinity are no JSON


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _EXACT_DIGITS else float(digits)


class _Rules:
    """What the scanner asks for by these names."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = staticmethod(_integer)
    parse_constant = staticmethod(_refuse_constant)


_scan = make_scanner(_Rules())  # type: ignore[arg-type]  # any object with these names does


def _has_lone_surrogates(value: object) -> bool:
    """Tell whether a text anywhere in a value was written with half a pair of escapes."""
    pending = [value]
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
    from execserver.protocol.syntax import find_damage  # only ever needed for damaged input

    return NotJson(find_damage(data).reason)
