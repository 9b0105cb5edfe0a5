"""The URL of a server, taken apart: what the upgrade request says, and where the socket leads.  Pure.

The usual form, a scheme, a name or IPv4 address, a port and a plain path, is read here.  For every other the
`websockets` library decides what it means; loading that takes as long as all else that a short command needs.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from execserver.client.errors import InvalidUrl

_UNIX_SCHEME: Final = "unix://"
_USUAL = re.compile(r"(wss?)://([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)(?::([1-9][0-9]{0,4}))?(/[A-Za-z0-9._/-]*)?")
_PORTS: Final = {"ws": 80, "wss": 443}
_MAX_PORT: Final = 65535


class Address(NamedTuple):
    """Where a server is: `resource` is the target of the upgrade request, `user` a name and a password.

    `socket_file` is the path of the Unix socket, if it is behind one.
    """

    secure: bool
    host: str
    port: int
    resource: str = "/"
    user: tuple[str, str] | None = None
    socket_file: str | None = None

    @property
    def is_private(self) -> bool:
        """True if nobody on a network can listen on the way."""
        return self.secure or self.socket_file is not None or _is_loopback(self.host)

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["wss" if self.secure else "ws"] else f"{host}:{self.port}"


def parse_url(url: str) -> Address:
    """Parse the URL of a server.  Raises `InvalidUrl`."""
    given = url.strip()
    if given.startswith(_UNIX_SCHEME):
        path = given[len(_UNIX_SCHEME) :]
        if not path.startswith("/") or "\0" in path:
            raise InvalidUrl(f"not the URL of a socket, unix:///PATH: {url!r}")
        return Address(False, "localhost", 80, socket_file=path)
    return usual(given) or _any(given)


def usual(url: str) -> Address | None:
    """Return the address in a URL of the usual form, None for any other text."""
    found = _USUAL.fullmatch(url)
    if found is None:
        return None
    scheme, host, port, path = found.groups()
    number = int(port) if port else _PORTS[scheme]
    return Address(scheme == "wss", host, number, path or "/") if number <= _MAX_PORT else None


def _any(url: str) -> Address:
    from urllib.parse import parse_qsl, urlsplit

    from websockets.exceptions import InvalidURI
    from websockets.uri import parse_uri

    try:
        uri = parse_uri(url)
    except (InvalidURI, ValueError) as error:
        raise InvalidUrl(f"not a ws://, wss:// or unix:// URL: {url!r}") from error
    # The reference's client speaks relay frames there.
    if ("role", "harness") in parse_qsl(urlsplit(url).query):
        raise InvalidUrl("a URL with role=harness belongs to a relay, which plain messages cannot use")
    return Address(uri.secure, uri.host, uri.port, uri.resource_name, uri.user_info)


def _is_loopback(host: str) -> bool:
    from ipaddress import ip_address  # late: only a token asks

    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
