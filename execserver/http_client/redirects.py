"""Where a redirect leads and what is sent there (wire contract, section 13).  Pure.

301 and 302 turn a POST into a GET, 303 turns everything but HEAD into one, both without the body; 307 and 308
repeat the request as it was.  A request to another host or port carries no credentials.
"""

from __future__ import annotations

from execserver.http_client import url as urls
from execserver.http_client.request import PreparedRequest
from execserver.http_client.url import BadUrl, OtherScheme, Url

_REPEATED = frozenset({307, 308})
_FOLLOWED = frozenset({301, 302, 303}) | _REPEATED
_BODY_HEADERS = (b"content-type", b"content-length", b"content-encoding", b"transfer-encoding")
_CREDENTIALS = (b"authorization", b"cookie", b"cookie2", b"proxy-authorization", b"www-authenticate")
# RFC 3986: a location with any other byte is no URI, and the client gets the redirect as the response.
_URI_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:/?#[]@!$&'()*+,;=%"


class UnfollowableRedirect(Exception):
    """The redirect leads to a URL that cannot be requested, `url`."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


def next_request(request: PreparedRequest, status: int, location: bytes | None) -> PreparedRequest | None:
    """Return the request that a response leads to, or None if it is final.  Raises UnfollowableRedirect."""
    if status not in _FOLLOWED or location is None or location.translate(None, _URI_BYTES):
        return None
    try:
        url = urls.join(request.url, location.decode("ascii"))
    except OtherScheme as other:
        raise UnfollowableRedirect(other.text) from None
    except BadUrl:
        return None
    return _redirected(request, status, url)


def _redirected(request: PreparedRequest, status: int, url: Url) -> PreparedRequest:
    headers = request.headers.copy()
    method, body = request.method, request.body
    if status == 303 or (status not in _REPEATED and method == "POST"):
        method = "HEAD" if method == "HEAD" else "GET"
        body = b""
        for name in _BODY_HEADERS:
            headers.remove(name)
    if url.address != request.url.address:
        for name in (*_CREDENTIALS, *sorted(request.secrets)):
            headers.remove(name)
    # The address of a page behind TLS is not sent in plain text.
    if request.url.scheme == "http" or url.scheme == "https":
        headers.set(b"referer", request.url._replace(fragment=None).text.encode())
    return request._replace(method=method, url=url, headers=headers, body=body)
