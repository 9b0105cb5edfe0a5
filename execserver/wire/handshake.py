"""The HTTP side of the one port: health check, refusals and the WebSocket upgrade (wire contract, section 2).

No I/O: `parse_head` parses the bytes before the empty line into a request, `answer` decides about it.  The
checks come in the contract's order: Origin, path, method, Connection, Upgrade, version, key.  Who asks is not
looked at here; whoever does that last answers with `refusal`.  `date` is the text of the Date header, so that
no clock is read here.

A head that two parsers could read differently is refused: a proxy in front of the server may be the other
parser, and would then take a part of one request for the next (request smuggling).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from execserver.wire.accepting import accept_value

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
}
# The bytes allowed in a name, a target and a head; `translate` with them removed leaves the others.  Each
# such call costs a microsecond before it looks at a byte: so one is for all values, and names are remembered.
_TOKEN_BYTES = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TARGET_BYTES = bytes(range(33, 127))
_HEAD_BYTES = b"\t\r\n" + bytes(range(32, 127)) + bytes(range(128, 256))
_REMEMBERED_NAMES = 256
_REMEMBERED_NAME_BYTES = 64
_LENGTH = r"[0-9]{1,18}"  # compiled when it is asked for: few requests have a length


_NONE: tuple[str, ...] = ()


class BadRequest(Exception):
    """The bytes are no HTTP/1.x request head."""


class Request(NamedTuple):
    """A request head: header names are lower case, values are stripped, repeats are kept in order."""

    method: str
    path: str
    http10: bool
    headers: dict[str, list[str]]

    def values(self, name: str) -> Sequence[str]:
        """Return every value of a header, in order."""
        return self.headers.get(name, _NONE)

    def has_token(self, name: str, token: str) -> bool:
        """True if a comma-separated header contains `token` (lower case), in any case."""
        for value in self.values(name):
            # Nearly all values are the token alone.
            if value.lower() == token or token in [part.strip().lower() for part in value.split(",")]:
                return True
        return False

    @property
    def has_body(self) -> bool:
        """True if a body follows the head."""
        return self.values("content-length") not in (_NONE, ["0"]) or "transfer-encoding" in self.headers


class Answer(NamedTuple):
    """The response: its bytes, and whether the connection is upgraded or kept."""

    data: bytes
    upgraded: bool
    keep_alive: bool


def parse_head(head: bytes) -> Request:
    """Parse a request head (everything before the empty line).  Raises `BadRequest`."""
    lines = head.split(b"\r\n")
    line_ends = len(lines) - 1
    # Without these no value holds a control character, and no line a CR or LF of its own.
    if head.translate(None, _HEAD_BYTES) or not head.count(b"\r") == head.count(b"\n") == line_ends:
        raise BadRequest("control characters")
    try:
        method, target, version = lines[0].split(b" ")
    except ValueError:
        raise BadRequest("request line") from None
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or not _is_token(method) or not _is_target(target):
        raise BadRequest("request line")
    headers = by_name([_header(line) for line in lines[1:] if line])
    path = target.split(b"?", 1)[0].decode("ascii")
    request = Request(method.decode("ascii"), path, version == b"HTTP/1.0", headers)
    if _is_ambiguous(request):
        raise BadRequest("more than one meaning")
    return request


def by_name(headers: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return headers with lower-case names in the form of a `Request`."""
    found: dict[str, list[str]] = {}
    for name, value in headers:
        found.setdefault(name, []).append(value)
    return found


def never_a_head(received: bytes) -> bool:
    """True if these bytes cannot become a valid head: one of their lines ends without CR."""
    return received.count(b"\n") != received.count(b"\r\n")


def answer(request: Request, date: str) -> Answer:
    """Answer one request; only a valid upgrade of `/` is `upgraded`."""
    # First, also for `/readyz`: browsers send Origin, and no web page may reach the server.
    if request.values("origin"):
        return _plain(request, date, 403)
    if request.path == "/readyz":
        if request.method in ("GET", "HEAD"):
            return _plain(request, date, 200)
        return _plain(request, date, 405, headers=["allow: GET,HEAD"])
    if request.path != "/":
        return _plain(request, date, 404)
    if request.method != "GET":
        return _plain(request, date, 405, body="Request method must be `GET`")
    refusal = _upgrade_refusal(request)
    if refusal is not None:
        return _plain(request, date, 400, body=refusal)
    return _upgrade(request.values("sec-websocket-key")[0], date)


def refusal(request: Request, date: str, status: int, text: str) -> Answer:
    """The answer to a request that would be upgraded, but for a rule that is not HTTP's."""
    return _plain(request, date, status, body=text)


def bad_request(date: str, status: int = 400) -> Answer:
    """The answer to bytes that are no request, or to a head above the size limit."""
    head = _head(status, ["connection: close", "content-length: 0"], date)
    return Answer(head, upgraded=False, keep_alive=False)


def _upgrade_refusal(request: Request) -> str | None:
    if not request.has_token("connection", "upgrade"):
        return "Connection header did not include 'upgrade'"
    if not request.has_token("upgrade", "websocket"):
        return "`Upgrade` header did not include 'websocket'"
    if request.values("sec-websocket-version") != ["13"]:
        return "`Sec-WebSocket-Version` header did not include '13'"
    if not request.values("sec-websocket-key"):
        return "`Sec-WebSocket-Key` header missing"
    if request.has_body:
        return "A WebSocket upgrade has no body"
    return None


def _upgrade(key: str, date: str) -> Answer:
    data = (
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        f"sec-websocket-accept: {accept_value(key)}\r\ndate: {date}\r\n\r\n"
    )
    return Answer(data.encode(), upgraded=True, keep_alive=True)


def _plain(
    request: Request, date: str, status: int, *, headers: list[str] | None = None, body: str = ""
) -> Answer:
    lines = list(headers or [])
    if body:
        lines.append("content-type: text/plain; charset=utf-8")
    lines.append(f"content-length: {len(body)}")
    # A body that was announced is not read: the connection ends instead of being parsed at the wrong place.
    keep_alive = not (request.http10 or request.has_body or request.has_token("connection", "close"))
    if not keep_alive and not request.http10:
        lines.insert(0, "connection: close")
    head = _head(status, lines, date, http10=request.http10)
    payload = b"" if request.method == "HEAD" else body.encode()
    return Answer(head + payload, upgraded=False, keep_alive=keep_alive)


def _head(status: int, headers: list[str], date: str, *, http10: bool = False) -> bytes:
    version = "HTTP/1.0" if http10 else "HTTP/1.1"
    lines = [f"{version} {status} {_REASONS[status]}", *headers, f"date: {date}", "", ""]
    return "\r\n".join(lines).encode()


def _header(line: bytes) -> tuple[str, str]:
    name, colon, value = line.partition(b":")
    if not colon:
        raise BadRequest("header")
    named = _known_name(name) if len(name) <= _REMEMBERED_NAME_BYTES else _name(name)
    return named, value.strip(b" \t").decode("latin-1")


def _name(name: bytes) -> str:
    if not _is_token(name):
        raise BadRequest("header")
    return name.decode("ascii").lower()


_known_name = lru_cache(maxsize=_REMEMBERED_NAMES)(_name)


def _is_ambiguous(request: Request) -> bool:
    """True if two parsers may find different ends of the body or different hosts (RFC 9112, 3.2 and 6.3)."""
    lengths, codings = request.values("content-length"), request.values("transfer-encoding")
    if not codings and not lengths:
        return len(request.values("host")) > 1
    if codings and (lengths or request.http10):
        return True
    if len(lengths) > 1 or not all(re.fullmatch(_LENGTH, length) for length in lengths):
        return True
    return len(codings) > 1 or len(request.values("host")) > 1


def _is_token(text: bytes) -> bool:
    return bool(text) and not text.translate(None, _TOKEN_BYTES)


def _is_target(text: bytes) -> bool:
    return text.startswith(b"/") and not text.translate(None, _TARGET_BYTES)
