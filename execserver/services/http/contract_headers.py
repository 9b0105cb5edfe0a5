"""The headers of `http/request` by the wire contract: which a client may send, and which it gets to see.

The checks raise InvalidParams with the contract's texts (sections 13 and 14).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from execserver.core.env_policy import SERVER_CREDENTIALS
from execserver.http_client.headers import Headers, basic_authorization, is_token
from execserver.protocol.errors import InvalidParams
from execserver.protocol.http import HttpHeader

_MAX_NAME_BYTES = 65_535  # as at the reference server
_VALUE_CONTROLS = bytes([*range(9), *range(10, 32), 127])  # all but the tab
_VISIBLE = bytes([9, *range(32, 127)])

# Variables with the credentials of this machine; a client may not have them sent anywhere.
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


def checked_headers(
    credentials: tuple[bytes, bytes] | None, given: Iterable[HttpHeader], environ: Mapping[str, str]
) -> Headers:
    """Return a client's headers, checked in their order; raise InvalidParams.

    `credentials` of the URL become an `authorization` header in the first place; one from the client replaces
    it.  `environ` is where `valueEnvVar` is looked up.
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


def shown_headers(lines: Iterable[tuple[bytes, bytes]]) -> list[HttpHeader]:
    """Return the headers of a response as clients see them.

    Names are in lower case, repeated ones grouped at the first; a header whose value is not visible ASCII is
    dropped.
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
    """Return the value of one of the server's variables; raise InvalidParams unless a header may have it."""
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
