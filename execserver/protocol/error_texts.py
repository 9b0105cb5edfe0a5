"""The error texts of decoding (wire contract, section 5): what came, what was expected, and where.

Standard library only: the server, whose records are typed, and the file helper, which checks its few params
itself, must refuse the same params with the same texts.  If the contract's text does not name the member, its
name follows in brackets, so a text always begins with the contract's.
"""

from __future__ import annotations

from execserver.protocol.errors import InvalidParams

SHOWN_CHARACTERS = 1000  # of a value that an error quotes; a refused text of 60 MiB must not be sent back

_ESCAPES = {"\t": "\\t", "\r": "\\r", "\n": "\\n", '"': '\\"', "\\": "\\\\", "\0": "\\0"}


def quoted(text: str) -> str:
    """Return a text in double quotes, with everything unprintable escaped, cut after SHOWN_CHARACTERS."""
    shown = "".join(_escaped(character) for character in text[:SHOWN_CHARACTERS])
    return f'"{shown}…"' if len(text) > SHOWN_CHARACTERS else f'"{shown}"'


def _escaped(character: str) -> str:
    known = _ESCAPES.get(character)
    if known is not None:
        return known
    return character if character.isprintable() else f"\\u{{{ord(character):x}}}"


def kind_of(value: object) -> str:
    """Name the kind of a decoded JSON value as the contract does, e.g. ``boolean `true` ``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean `true`" if value else "boolean `false`"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return f"string {quoted(value)}"
    return "map" if isinstance(value, dict) else "sequence"


def refuse(text: str, where: str = "") -> InvalidParams:
    """Return the error with a text of the contract; `where` is the member, empty for the params."""
    return InvalidParams(f"{text} (in `{where}`)" if where else text)


def wrong_type(value: object, wanted: str, where: str = "") -> InvalidParams:
    """Return the error for a value of the wrong JSON type."""
    return refuse(f"invalid type: {kind_of(value)}, expected {wanted}", where)


def missing_field(name: str) -> InvalidParams:
    """Return the error for a missing required member."""
    return InvalidParams(f"missing field `{name}`")


def unknown_variant(value: str, accepted: tuple[str, ...], where: str = "") -> InvalidParams:
    """Return the error for a text that is not a name of an enum."""
    return _unknown("variant", value, accepted, where)


def unknown_field(name: str, accepted: tuple[str, ...], where: str = "") -> InvalidParams:
    """Return the error for a member of a struct that allows none but its own."""
    return _unknown("field", name, accepted, where)


def _unknown(what: str, value: str, accepted: tuple[str, ...], where: str) -> InvalidParams:
    names = [f"`{name}`" for name in accepted]
    wanted = f"one of {', '.join(names)}" if len(names) > 2 else " or ".join(names)
    shown = value if len(value) <= SHOWN_CHARACTERS else value[:SHOWN_CHARACTERS] + "…"
    return refuse(f"unknown {what} `{shown}`, expected {wanted}", where)


def variant_name(value: object, accepted: tuple[str, ...], where: str = "") -> str:
    """Check one enum value, given as `"name"` or `{"name":null}`, and return its name."""
    content: object = None
    if isinstance(value, dict):
        if len(value) != 1:
            raise refuse("invalid value: map, expected map with a single key", where)
        ((value, content),) = value.items()
    if not isinstance(value, str):
        raise wrong_type(value, "string or map", where)
    if value not in accepted:
        raise unknown_variant(value, accepted, where)
    if content is not None:
        raise wrong_type(content, "unit", where)
    return value


def utf8_fault(error: UnicodeDecodeError) -> str:
    """Return why bytes are not UTF-8, in the contract's words."""
    if error.end == len(error.object) and error.reason == "unexpected end of data":
        return f"incomplete utf-8 byte sequence from index {error.start}"
    return f"invalid utf-8 sequence of {error.end - error.start} bytes from index {error.start}"
