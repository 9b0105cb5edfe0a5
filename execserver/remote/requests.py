"""Requests to a JSON API, checked and ready to send.  No I/O."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from execserver.http_client.headers import Headers
from execserver.http_client.request import PreparedRequest
from execserver.http_client.url import BadUrl, Url, parse
from execserver.remote.answers import CallFailed, Fields

_BAD_REQUEST = "builder error"
_CONTROLS = bytes(range(32)) + b"\x7f"


def prepare_post(url: str, fields: Fields, body: object, timeout_s: float | None) -> PreparedRequest:
    """Return a request with a JSON body.  Raises CallFailed."""
    head = [*fields, ("content-type", "application/json")]
    return prepare("POST", url, head, msgspec.json.encode(body), timeout_s)


@lru_cache(maxsize=16)
def _parsed(url: str) -> Url:
    return parse(url)


def prepare(method: str, url: str, fields: Fields, body: bytes, timeout_s: float | None) -> PreparedRequest:
    """Return a request.  Raises CallFailed for headers or a URL that cannot be sent."""
    headers = Headers()
    for name, value in fields:
        headers.add(name.encode("ascii"), _header_value(name, value))
    headers.add(b"accept", b"*/*")
    try:
        target = _parsed(url)
    except BadUrl as error:
        raise CallFailed(_BAD_REQUEST, str(error), is_transient=False) from None
    return PreparedRequest(
        request_id="",
        method=method,
        url=target,
        headers=headers,
        secrets=frozenset(),
        body=body,
        timeout_s=timeout_s,
        follow=False,
        streamed=False,
    )


def _header_value(name: str, value: str) -> bytes:
    """Return a header's value as bytes.  Raises CallFailed if it holds a control character."""
    data = value.encode("utf-8", "surrogateescape")
    if data.translate(None, _CONTROLS) != data:
        raise CallFailed(_BAD_REQUEST, f"the header {name} holds a control character", is_transient=False)
    return data
