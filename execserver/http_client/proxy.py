"""The proxy of a request, chosen by the variables of the server's environment (wire contract, section 13).

`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`; the upper-case spelling takes precedence, even if it
is set but empty.  Under CGI (`REQUEST_METHOD` is set) `HTTP_PROXY` does not count, since a peer's `Proxy`
header would set it.  `NO_PROXY` lists domains (subdomains included), addresses and networks; `*` means
everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from execserver.http_client.headers import basic_authorization
from execserver.http_client.url import Url
from execserver.protocol.percent import percent_decode

_SCHEMES = frozenset({"http", "https", "socks4", "socks4a", "socks5", "socks5h"})  # others name no proxy


class UnsupportedProxy(Exception):
    """The environment names a proxy of an unsupported kind."""


class Proxy(NamedTuple):
    """Where a proxy listens, and the value of `proxy-authorization` for it."""

    scheme: str
    host: str
    port: int
    authorization: bytes | None


class Proxies:
    """The proxies that an environment names."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        everything = _parse(_first(environ, "ALL_PROXY"))
        plain = None if "REQUEST_METHOD" in environ else _parse(_first(environ, "HTTP_PROXY"))
        self._by_scheme = {
            "http": plain or everything,
            "https": _parse(_first(environ, "HTTPS_PROXY")) or everything,
        }
        entries = [entry.strip() for entry in _first(environ, "NO_PROXY").split(",")]
        self._direct = [entry.lower() for entry in entries if entry]

    def proxy_for(self, url: Url) -> Proxy | None:
        """Return the proxy for a URL, None for a direct connection.  Raises UnsupportedProxy."""
        return None if self._goes_direct(url.host) else self.by_scheme(url.scheme)

    def by_scheme(self, scheme: str) -> Proxy | None:
        """Return the proxy for all `http` or all `https` URLs.  Raises UnsupportedProxy."""
        proxy = self._by_scheme[scheme]
        if proxy is not None and proxy.scheme != "http":
            raise UnsupportedProxy(f"proxies of scheme `{proxy.scheme}` are not supported")
        return proxy

    def _goes_direct(self, host: str) -> bool:
        if "*" in self._direct:
            return True
        address = host.strip("[]")
        return any(
            address == entry or _is_in_domain(address, entry) or _is_in_network(address, entry)
            for entry in self._direct
        )


def tunnel_request(url: Url, proxy: Proxy) -> bytes:
    """Return what asks a proxy for a tunnel to the server of a URL."""
    place = f"{url.host}:{url.address[1]}"
    head = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n".encode()
    if proxy.authorization is not None:
        head += b"Proxy-Authorization: %b\r\n" % proxy.authorization
    return head + b"\r\n"


def _first(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, environ.get(name.lower(), ""))


def _parse(text: str) -> Proxy | None:
    """Return the proxy that a variable names, None if it names none."""
    scheme, found, rest = text.strip().rpartition("://")
    scheme = scheme.lower() if found else "http"
    authority = rest.partition("/")[0].partition("?")[0]
    userinfo, _, place = authority.rpartition("@")
    host, colon, port = place.rpartition(":") if not place.endswith("]") else (place, "", "")
    if not colon:
        host, port = place, "443" if scheme == "https" else "80"
    if scheme not in _SCHEMES or not host or not (port.isascii() and port.isdigit()) or int(port[:6]) > 65535:
        return None
    authorization = None
    if userinfo:
        user, _, password = userinfo.partition(":")
        authorization = basic_authorization(percent_decode(user), percent_decode(password))
    return Proxy(scheme, host.strip("[]"), int(port), authorization)


def _is_in_domain(host: str, entry: str) -> bool:
    domain = entry.removeprefix(".")
    return host == domain or host.endswith("." + domain)


def _is_in_network(host: str, entry: str) -> bool:
    """True if a numeric host is in a network such as 10.0.0.0/8 or fe80::/10."""
    if "/" not in entry:
        return False
    import ipaddress

    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
