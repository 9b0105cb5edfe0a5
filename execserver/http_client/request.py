"""One request, checked and ready to send: what `http/request` asks for, and its bytes on the wire.

The head is written here and not by the HTTP library, which would put `host` first: the contract fixes the
order (section 13).  `content-length` is always the real length, even if the client names another one.
"""

from __future__ import annotations

from typing import NamedTuple

from execserver.http_client.headers import Headers
from execserver.http_client.url import Url

# The reference refuses longer URLs; servers accept far less.
MAX_URL_CHARACTERS = 65_534


class PreparedRequest(NamedTuple):
    """A checked request; `timeout_s` covers everything up to the end of the body, None means no limit.

    `secrets` are the names of headers with values from this machine, which no redirect elsewhere may get.
    """

    request_id: str
    method: str
    url: Url
    headers: Headers
    secrets: frozenset[bytes]
    body: bytes
    timeout_s: float | None
    follow: bool
    streamed: bool

    def encode(self, *, absolute: bool = False, proxy_authorization: bytes | None = None) -> bytes:
        """Return the bytes to send; `absolute` is the form for a forwarding proxy."""
        headers = self.headers.copy()
        if proxy_authorization is not None:
            headers.set_default(b"proxy-authorization", proxy_authorization)
        headers.set_default(b"host", self.url.authority.encode())
        body = _framed(headers, self.body)
        line = f"{self.method} {self._target(absolute)} HTTP/1.1\r\n"
        return line.encode() + headers.encode() + b"\r\n" + body

    def _target(self, absolute: bool) -> str:
        if self.method == "CONNECT":
            return self.url.authority
        if absolute:
            return f"{self.url.scheme}://{self.url.authority}{self.url.target}"
        return self.url.target


def _framed(headers: Headers, body: bytes) -> bytes:
    """Set the headers for the body's length; return the body in the form it is sent."""
    if not body:
        headers.remove(b"transfer-encoding")
        if b"content-length" in headers:
            headers.set(b"content-length", b"0")
        return b""
    if b"transfer-encoding" not in headers:
        headers.set(b"content-length", b"%d" % len(body))
        return body
    # Both headers together would be ambiguous, and `chunked` must be the last coding (RFC 9112, section 6).
    headers.remove(b"content-length")
    codings = b", ".join(headers.values(b"transfer-encoding"))
    if codings.rpartition(b",")[2].strip().lower() != b"chunked":
        codings += b", chunked"
    headers.set(b"transfer-encoding", codings)
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
