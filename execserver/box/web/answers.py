"""The heads of the console's answers: every one has the headers that confine the pages.  Pure."""

from __future__ import annotations

import os
from typing import Final

from execserver.wire.accepting import accept_value
from execserver.wire.handshake import Request

_REASONS: Final = {
    200: "OK",
    201: "Created",
    204: "No Content",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    411: "Length Required",
    412: "Precondition Failed",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    503: "Service Unavailable",
}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
_ALWAYS: Final = (
    f"content-security-policy: {POLICY}",
    "x-content-type-options: nosniff",
    "x-frame-options: DENY",
    "referrer-policy: no-referrer",
    "cache-control: no-store",
    "cross-origin-opener-policy: same-origin",
    "cross-origin-resource-policy: same-origin",
    "connection: close",
)
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
_PLAIN_NAME: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-() ")


def head(status: int, *headers: str) -> bytes:
    """Return the head of an answer, which is the last one on its connection."""
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", *_ALWAYS, *headers, "", ""]
    return "\r\n".join(lines).encode("ascii")


def plain(status: int, text: str = "") -> bytes:
    """Return an answer with a line of text, none for 204."""
    if status == 204:
        return head(status)
    body = text.encode("utf-8", "replace")
    return head(status, f"content-type: {_TYPES['.txt']}", f"content-length: {len(body)}") + body


def page(name: str, body: bytes) -> bytes:
    """Return an answer with a file of the console's own."""
    kind = _TYPES.get(os.path.splitext(name)[1], "application/octet-stream")
    return head(200, f"content-type: {kind}", f"content-length: {len(body)}") + body


def download(path: str) -> bytes:
    """Return the head of a download in chunks.  Whatever it holds, the browser keeps it as a file."""
    name = path.rpartition("/")[2] or "file"
    fallback = "".join(each if each in _PLAIN_NAME else "_" for each in name)[:200]
    encoded = "".join(f"%{byte:02X}" for byte in name.encode("utf-8", "replace")[:255])
    return head(
        200,
        "content-type: application/octet-stream",
        f"content-disposition: attachment; filename=\"{fallback}\"; filename*=UTF-8''{encoded}",
        "transfer-encoding: chunked",
    )


def upgrade(request: Request) -> bytes | None:
    """Return the answer that makes a WebSocket of the connection; None for a request that asks for none."""
    keys = request.values("sec-websocket-key")
    if (
        not request.has_token("connection", "upgrade")
        or not request.has_token("upgrade", "websocket")
        or request.values("sec-websocket-version") != ["13"]
        or len(keys) != 1
        or request.has_body
    ):
        return None
    lines = (
        "HTTP/1.1 101 Switching Protocols",
        "connection: upgrade",
        "upgrade: websocket",
        f"sec-websocket-accept: {accept_value(keys[0])}",
        "",
        "",
    )
    return "\r\n".join(lines).encode("ascii")
