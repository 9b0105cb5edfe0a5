"""Header lines of a request.

`Headers` keeps names in lower case in the order of their first occurrence, repeats of a name together at its
first place, as the reference writes them.  Values are bytes, sent as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

from execserver.protocol import base64

_TOKEN = frozenset(
    "!#$%&'*+-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ^_`abcdefghijklmnopqrstuvwxyz|~"  # RFC 9110, section 5.6.2
)


class Headers:
    """An ordered multimap from lower-case name to values."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[bytes, list[bytes]] = {}

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return ((name, value) for name, values in self._values.items() for value in values)

    def __contains__(self, name: bytes) -> bool:
        return name in self._values

    def copy(self) -> Headers:
        """Return headers that change independently."""
        other = Headers()
        other._values = {name: list(values) for name, values in self._values.items()}
        return other

    def values(self, name: bytes) -> list[bytes]:
        """Return all values of a name, oldest first."""
        return list(self._values.get(name, ()))

    def add(self, name: bytes, value: bytes) -> None:
        """Append a value to those of the name."""
        self._values.setdefault(name, []).append(value)

    def set(self, name: bytes, value: bytes) -> None:
        """Make this the only value of the name, which keeps its place."""
        self._values[name] = [value]

    def set_default(self, name: bytes, value: bytes) -> None:
        """Add the value if the name has none."""
        self._values.setdefault(name, [value])

    def remove(self, name: bytes) -> None:
        """Remove a name; the last one moves into the gap, as in the reference's table of headers."""
        if name not in self._values:
            return
        names = list(self._values)
        last = names.pop()
        if last != name:
            names[names.index(name)] = last
        self._values = {each: self._values[each] for each in names}

    def encode(self) -> bytes:
        """Return the header lines, each with its line end."""
        return b"".join([b"%b: %b\r\n" % pair for pair in self])


def is_token(text: str) -> bool:
    """True if a text may be a method or a header name."""
    return bool(text) and _TOKEN.issuperset(text)


def basic_authorization(user: bytes, password: bytes) -> bytes:
    """Return the value of an `authorization` header for HTTP basic authentication."""
    return b"Basic " + base64.encode(user + b":" + password)
