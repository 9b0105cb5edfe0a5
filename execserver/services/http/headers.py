"""Header lines of a request, and which of them a client may send.

`Headers` keeps names in lower case in the order they first came, repeats of a name together at its first
place, as the reference writes them.  Values are bytes, sent as they are.  The checks raise InvalidParams
with the contract's texts (sections 13 and 14.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from execserver.core.env_policy import SERVER_CREDENTIALS
from execserver.protocol import base64
from execserver.protocol.errors import InvalidParams
from execserver.protocol.http import HttpHeader

_MAX_NAME_BYTES = 65_535  # the reference's
_TOKEN = frozenset(
    "!#$%&'*+-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ^_`abcdefghijklmnopqrstuvwxyz|~"  # RFC 9110, section 5.6.2
)
_VALUE_CONTROLS = bytes([*range(9), *range(10, 32), 127])  # all but the tab
_VISIBLE = bytes([9, *range(32, 127)])

# Variables that hold what this machine signs in with elsewhere; a client may not have them sent anywhere.
_PROTECTED_VARIABLES = frozenset(
    {
        *(name.decode() for name in SERVER_CREDENTIALS),
        "CODEX_CONNECTORS_TOKEN",
        "OPENAI_API_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AZURE_CLIENT_SECRET",
        "AZURE_FEDERATED_TOKEN_FILE",
        "GOOGLE_APPLICATION_CREDENTIALS",
    }
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
        """Make this the only value of the name, at the place the name has."""
        self._values[name] = [value]

    def set_default(self, name: bytes, value: bytes) -> None:
        """Add the value if the name has none."""
        self._values.setdefault(name, [value])

    def remove(self, name: bytes) -> None:
        """Take out a name; the last one moves into the gap, as in the reference's table of headers."""
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
    """Tell whether a text may be a method or a header name."""
    return bool(text) and _TOKEN.issuperset(text)


def checked_headers(
    credentials: tuple[bytes, bytes] | None, given: Iterable[HttpHeader], environ: Mapping[str, str]
) -> Headers:
    """Return a client's headers, checked in their order; raise InvalidParams.

    `credentials` of the URL become an `authorization` header in the first place, which one of the client's
    replaces.  `environ` is where `valueEnvVar` is looked up.
    """
    headers = Headers()
    if credentials is not None:
        headers.set(b"authorization", basic_authorization(*credentials))
    replaced = credentials is None
    for header in given:
        name = _checked_name(header.name)
        value = _checked_value(header, environ)
        if name == b"authorization" and not replaced:
            replaced = True
            headers.set(name, value)
        else:
            headers.add(name, value)
    headers.set_default(b"accept", b"*/*")
    return headers


def secret_names(given: Iterable[HttpHeader]) -> frozenset[bytes]:
    """Return the names of checked headers whose values come from the environment."""
    return frozenset(
        header.name.lower().encode() for header in given if isinstance(header.value_env_var, str)
    )


def basic_authorization(user: bytes, password: bytes) -> bytes:
    """Return the value of an `authorization` header."""
    return b"Basic " + base64.encode(user + b":" + password)


def shown_headers(lines: Iterable[tuple[bytes, bytes]]) -> list[HttpHeader]:
    """Return a response's headers as clients see them.

    Names are lower case, repeated ones grouped at the first; values that are not visible ASCII are dropped.
    """
    grouped: dict[bytes, list[HttpHeader]] = {}
    for name, value in lines:
        if not value.translate(None, _VISIBLE):
            shown = HttpHeader(name=name.decode("ascii"), value=value.decode("ascii"))
            grouped.setdefault(name, []).append(shown)
    return [header for headers in grouped.values() for header in headers]


def _checked_name(name: str) -> bytes:
    if not is_token(name) or len(name) > _MAX_NAME_BYTES:
        raise InvalidParams("http/request header name is invalid: invalid HTTP header name")
    return name.lower().encode()


def _checked_value(header: HttpHeader, environ: Mapping[str, str]) -> bytes:
    value = header.value
    if isinstance(header.value_env_var, str):
        value += _variable(header.name, header.value_env_var, environ)
    encoded = value.encode("utf-8", "surrogateescape")
    if len(encoded.translate(None, _VALUE_CONTROLS)) != len(encoded):
        raise InvalidParams(
            f"http/request header value is invalid for {header.name}: failed to parse header value"
        )
    return encoded


def _variable(name: str, variable: str, environ: Mapping[str, str]) -> str:
    """Return the value of one of the server's variables, if a header may have it."""
    if variable.upper() in _PROTECTED_VARIABLES:
        raise InvalidParams(f"http/request header {name} cannot use executor environment variable {variable}")
    value = environ.get(variable)
    if value is None:
        raise InvalidParams(f"http/request header {name} requires executor environment variable {variable}")
    if not value:
        raise InvalidParams(
            f"http/request header {name} requires a non-empty executor environment variable {variable}"
        )
    return value
