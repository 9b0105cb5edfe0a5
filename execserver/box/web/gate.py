"""Who may ask the console for what: by the URL's secret, the Host header and the Origin.  Pure.

A page of another origin can send requests here, but cannot know the secret, and its Origin gives it away.  A
name that was made to lead here (DNS rebinding) is not the address in Host.
"""

from __future__ import annotations

import hmac
from typing import Final, NamedTuple

from execserver.protocol.percent import percent_decode
from execserver.wire.handshake import Request

NOT_FOUND: Final = 404
FORBIDDEN: Final = 403
WRONG_METHOD: Final = 405
_CHANGING: Final = ("PUT",)
_SAME: Final = ("same-origin", "none")


class Refused(Exception):
    """The request is not served; `status` is that of the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Asked(NamedTuple):
    """What a request is for: a name below the secret, empty for the index, and the query's values."""

    name: str
    query: dict[str, str]


class Gate:
    """The one address at which the console answers."""

    def __init__(self, port: int, secret: str) -> None:
        self.host = f"127.0.0.1:{port}"
        self.origin = f"http://{self.host}"
        self.url = f"{self.origin}/{secret}/"
        self._secret = secret.encode()

    def admit(self, request: Request, query: str) -> Asked:
        """Return what is asked for.  Raises Refused."""
        secret, slash, name = request.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(secret.encode(), self._secret) or not slash:
            raise Refused(NOT_FOUND, "not found")
        if request.values("host") != [self.host]:
            raise Refused(FORBIDDEN, f"the Host header is not {self.host}")
        self._check_origin(request, name)
        if request.method not in ("GET", "PUT" if name == "files" else "GET"):
            raise Refused(WRONG_METHOD, "only GET, and PUT of files")
        return Asked(name, _values(query))

    def _check_origin(self, request: Request, name: str) -> None:
        """Demand our own Origin of what changes something; browsers send it with all of that."""
        given = request.values("origin")
        needed = name == "ws" or request.method in _CHANGING
        if given != [self.origin] and (given or needed):
            raise Refused(FORBIDDEN, "the Origin header is not that of the console")
        # The index is opened from elsewhere: a terminal, or the file that starts the browser.
        site = request.values("sec-fetch-site")
        if name and site and (len(site) > 1 or site[0] not in _SAME):
            raise Refused(FORBIDDEN, "another site may not use the console")


def _values(query: str) -> dict[str, str]:
    """Return the values of a query; bytes that are no UTF-8 become lone surrogates."""
    found: dict[str, str] = {}
    for pair in query.split("&"):
        name, equals, value = pair.partition("=")
        if equals and name not in found:
            text = percent_decode(value.replace("+", " "))
            found[name] = text.decode("utf-8", "surrogateescape")
    return found
