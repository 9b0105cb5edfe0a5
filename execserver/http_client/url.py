"""URLs of requests and redirects, parsed by the rules of browsers, with the reference's refusals.

`parse` takes what a client wrote, `join` what a server sent in `location`.  Both return a `Url` in normal
form: lower-case host (international names as `xn--`, numeric hosts as addresses), no default port, dot
segments resolved, forbidden characters percent-encoded, escapes kept as they were.  Text that is no URL
raises `BadUrl`; a URL of another scheme than http and https raises `OtherScheme`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from execserver.protocol.errors import InvalidParams
from execserver.protocol.percent import percent_decode

_DEFAULT_PORTS = {"http": 80, "https": 443}
_SCHEME_REST = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.")
_OUTER = "".join(map(chr, range(0x21)))  # controls and space, dropped at both ends
_INNER = str.maketrans("", "", "\t\n\r")  # dropped everywhere
_LOOPBACK = re.compile(r"127\.[0-9]+\.[0-9]+\.[0-9]+")  # hosts are in normal form: it is an address
_ONE_DOT = frozenset({".", "%2e"})
_TWO_DOTS = frozenset({"..", ".%2e", "%2e.", "%2e%2e"})


def _encoder(encoded: str) -> list[str]:
    """Return the text for each byte: itself, or its escape if it is in `encoded`, a control or not ASCII."""
    return [
        chr(byte) if 0x20 < byte < 0x7F and chr(byte) not in encoded else f"%{byte:02X}"
        for byte in range(256)
    ]


_PATH = _encoder('"<>`#?{}')
_QUERY = _encoder("\"<>#'")
_FRAGMENT = _encoder('"<>`')


class BadUrl(ValueError):
    """The text is no URL; the message is the URL parser's."""


class OtherScheme(BadUrl):
    """The text is a URL of another `scheme` than http and https; `text` is the URL."""

    def __init__(self, scheme: str, text: str) -> None:
        super().__init__(scheme)
        self.scheme = scheme
        self.text = text


class Url(NamedTuple):
    """One http or https URL in normal form; `userinfo` is still percent-encoded."""

    scheme: str
    userinfo: str
    host: str
    port: int | None  # None is the scheme's own
    path: str
    query: str | None
    fragment: str | None

    @property
    def text(self) -> str:
        """The whole URL without its credentials, which must appear in no message."""
        fragment = "" if self.fragment is None else f"#{self.fragment}"
        return f"{self.scheme}://{self.authority}{self.target}{fragment}"

    @property
    def authority(self) -> str:
        """The host, with the port if it is not the scheme's own."""
        return self.host if self.port is None else f"{self.host}:{self.port}"

    @property
    def target(self) -> str:
        """Path and query, as in a request line."""
        return self.path if self.query is None else f"{self.path}?{self.query}"

    @property
    def address(self) -> tuple[str, int]:
        """Where to connect: host (IPv6 without brackets) and port."""
        return self.host.strip("[]"), self.port or _DEFAULT_PORTS[self.scheme]

    @property
    def is_loopback(self) -> bool:
        """True if the host is `localhost` or an address of the loopback."""
        host = self.address[0]
        return host in ("localhost", "::1") or _LOOPBACK.fullmatch(host) is not None

    @property
    def credentials(self) -> tuple[bytes, bytes] | None:
        """User and password; None if there are none, or if they are not UTF-8."""
        user, _, password = self.userinfo.partition(":")
        found = percent_decode(user), percent_decode(password)
        try:
            for part in found:
                part.decode()
        except UnicodeDecodeError:
            return None
        return found if any(found) else None


def parse(text: str) -> Url:
    """Return the URL that a client asks for.  Raises BadUrl or OtherScheme."""
    scheme, rest = _split_scheme(_clean(text))
    if not scheme:
        raise BadUrl("relative URL without a base")
    if scheme not in _DEFAULT_PORTS:
        _check_other(scheme, rest)
        raise OtherScheme(scheme, f"{scheme}:{rest}")
    return _parse_absolute(scheme, rest)


def join(base: Url, text: str) -> Url:
    """Return the URL of a reference relative to `base`.  Raises BadUrl or OtherScheme."""
    text = _clean(text)
    scheme, rest = _split_scheme(text)
    if scheme and (scheme != base.scheme or rest[:2] in ("//", "/\\", "\\/", "\\\\")):
        return parse(text)
    rest, fragment = _cut(rest if scheme else text, "#", _FRAGMENT)
    rest, query = _cut(rest, "?", _QUERY)
    rest = rest.replace("\\", "/")
    if rest.startswith("//"):
        return parse(f"{base.scheme}:{text}")
    if not rest:
        query = base.query if query is None else query
        return base._replace(userinfo="", query=query, fragment=fragment)
    folder = "" if rest.startswith("/") else base.path.rpartition("/")[0] + "/"
    return base._replace(userinfo="", path=_resolve(folder + rest), query=query, fragment=fragment)


def _clean(text: str) -> str:
    return text.strip(_OUTER).translate(_INNER)


def _split_scheme(text: str) -> tuple[str, str]:
    scheme, colon, rest = text.partition(":")
    if colon and scheme[:1].isalpha() and _SCHEME_REST.issuperset(scheme):
        return scheme.lower(), rest
    return "", text


def _parse_absolute(scheme: str, rest: str) -> Url:
    rest, fragment = _cut(rest, "#", _FRAGMENT)
    rest, query = _cut(rest, "?", _QUERY)
    authority, slash, path = rest.replace("\\", "/").lstrip("/").partition("/")
    userinfo, _, place = authority.rpartition("@")
    host, port = _split_port(place)
    if not host:
        raise BadUrl("empty host")
    host = _normal_host(host)
    return Url(scheme, userinfo, host, _port(port, scheme), _resolve(slash + path), query, fragment)


def _cut(text: str, mark: str, encoder: list[str]) -> tuple[str, str | None]:
    """Split at the first mark; return what precedes it, and encoded what follows (None without a mark)."""
    before, found, after = text.partition(mark)
    return before, _encode(after, encoder) if found else None


def _encode(text: str, encoder: list[str]) -> str:
    return "".join([encoder[byte] for byte in text.encode()])


def _resolve(path: str) -> str:
    """Return an encoded path without dot segments."""
    segments: list[str] = []
    given = path.removeprefix("/").split("/")
    for index, segment in enumerate(given):
        lowered = segment.lower()
        if lowered not in _ONE_DOT and lowered not in _TWO_DOTS:
            segments.append(segment)
            continue
        if lowered in _TWO_DOTS and segments:
            segments.pop()
        if index == len(given) - 1:
            segments.append("")
    return "/" + _encode("/".join(segments), _PATH)


def _split_port(place: str) -> tuple[str, str]:
    """Return host and port; a colon inside brackets belongs to the host."""
    if place.startswith("["):
        address, bracket, rest = place.partition("]")
        if (bracket and not rest) or rest.startswith(":"):
            return address + bracket, rest[1:]
        return place, ""
    host, _, port = place.partition(":")
    return host, port


def _port(text: str, scheme: str) -> int | None:
    if not text:
        return None
    digits = text.lstrip("0") or "0"
    if not (text.isascii() and text.isdigit()) or len(digits) > 5 or int(digits) > 65535:
        raise BadUrl("invalid port number")
    return None if int(digits) == _DEFAULT_PORTS[scheme] else int(digits)


def _normal_host(host: str) -> str:
    from execserver.protocol.url_hosts import parse_file_host  # late: it brings the Unicode tables

    try:
        return parse_file_host(host) or "localhost"
    except InvalidParams as refusal:
        raise BadUrl(refusal.message.removeprefix("invalid URI: ")) from None


def _check_other(scheme: str, rest: str) -> None:
    """Raise BadUrl if a text of another scheme is no URL at all."""
    from execserver.protocol.url_hosts import check_other_url, parse_file_host

    try:
        if scheme != "file":
            check_other_url(scheme, rest)
        elif rest.startswith("//") and (host := rest[2:].partition("/")[0]):
            parse_file_host(host)
    except InvalidParams as refusal:
        raise BadUrl(refusal.message.removeprefix("invalid URI: ")) from None
