"""The addresses of a rendezvous, and the heads of an upgrade there.  No I/O.

The credential is in the URL, so the URL never appears in a text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import quote

from websockets.exceptions import InvalidURI
from websockets.uri import WebSocketURI, parse_uri

from execserver.http_client.url import Url, parse

REQUEST_ID = "x-request-id"
"""The header by which the registry finds an upgrade."""

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})(?: ([^\r\n]*))?\r\n")
# For diagnostics only; the newer reference sends it with a refusal.
_REASON_HEADER = re.compile(
    rb"\r\nx-codex-rendezvous-rejection-reason:[ \t]*([\w-]{1,64})[ \t]*\r\n", re.IGNORECASE
)


def shown(url: str) -> str:
    """Return the part of a URL that may be logged: scheme, host and port, without credentials."""
    scheme, _, rest = url.strip().partition("://")
    place = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    return f"{scheme}://{place}" if place else "the address the registry gave"


def parse_rendezvous(url: str) -> WebSocketURI:
    """Return the parts of an address that the registry gave.  Raises ValueError."""
    # Escaped here, since the library would escape the percent signs of a non-ASCII URL once more.
    ascii_url = "".join(each if each.isascii() else quote(each) for each in url.strip())
    try:
        return parse_uri(ascii_url)
    except (InvalidURI, ValueError):
        raise ValueError("the address from the registry is no ws:// or wss:// URL") from None


def websocket_proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the rule for WebSockets: wss takes HTTPS_PROXY, then HTTP_PROXY."""
    found = dict(environ)
    given = [found.get(name, found.get(name.lower(), "")) for name in ("HTTPS_PROXY", "HTTP_PROXY")]
    found["HTTPS_PROXY"] = given[0] or given[1]
    return found


def as_http(uri: WebSocketURI) -> Url:
    """Return the URL that chooses proxy and address.  Raises BadUrl."""
    host = f"[{uri.host}]" if ":" in uri.host else uri.host
    return parse(f"{'https' if uri.secure else 'http'}://{host}:{uri.port}/")


def new_request_id() -> str:
    """Return a fresh value of `REQUEST_ID`."""
    return f"req_{os.urandom(16).hex()}"


def upgrade_status(head: bytes) -> tuple[int, str]:
    """Return the status of an answer to an upgrade and the reason told for it; 0 for what is no HTTP.

    `head` has no empty line at its end.
    """
    line = _STATUS_LINE.match(head + b"\r\n")
    told = _REASON_HEADER.search(head + b"\r\n")
    return (0, "") if line is None else (int(line[1]), told[1].decode() if told else "")
