"""The load balancer's cookies of ChatGPT's hosts, kept in memory between requests.  Pure: no I/O, no clock.

Requests of one client should stay at one backend of these hosts.  Only the names below are kept, only for
these hosts and only over https; no login and no other cookie ever gets in.  Path, domain and expiry are
obeyed as RFC 6265 says.  At most `MAX_COOKIES` of `MAX_BYTES` each: the oldest makes room.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from execserver.http_client.cookie_date import seconds_since_1970
from execserver.http_client.url import Url

MAX_COOKIES = 64
MAX_BYTES = 4096  # of name and value together, as in browsers

_WITH_SUBDOMAINS = ("chatgpt.com", "chatgpt-staging.com")
_EXACT = frozenset({"chat.openai.com", *_WITH_SUBDOMAINS})
_NAMES = frozenset(
    {
        *(b"__cf_bm", b"__cflb", b"__cfruid", b"__cfseq", b"__cfwaitingroom"),
        *(b"_cfuvid", b"cf_clearance", b"cf_ob_info", b"cf_use_ob"),
    }
)
_NAME_PREFIX = b"cf_chl_"
_VALUE = re.compile(rb"[\x21-\x3a\x3c-\x7e]*")  # visible, and no semicolon
_NUMBER = re.compile(rb"-?[0-9]{1,18}")
_BLANKS = b" \t"


class _Cookie(NamedTuple):
    value: bytes
    path: str
    domain: str
    host_only: bool
    expires: float | None  # seconds since 1970; None lasts as long as the process
    number: int  # the order of creation


class CookieJar:
    """The cookies of one process."""

    def __init__(self) -> None:
        self._cookies: dict[tuple[bytes, str, str], _Cookie] = {}  # by name, domain and path
        self._count = 0

    def __len__(self) -> int:
        return len(self._cookies)

    def __repr__(self) -> str:
        return f"<CookieJar: {len(self)} cookies>"

    def store(self, url: Url, lines: Iterable[tuple[bytes, bytes]], now: float) -> None:
        """Keep what a response's `set-cookie` lines ask for; `lines` are all its header lines."""
        if not is_kept_for(url):
            return
        for name, value in lines:
            if name == b"set-cookie":
                self._store(url, value, now)

    def header(self, url: Url, now: float) -> bytes | None:
        """Return the value of the `cookie` header for a request; None for no header."""
        if not self._cookies or not is_kept_for(url):
            return None
        self._drop_expired(now)
        fitting = [
            (-len(cookie.path), cookie.number, name, cookie.value)
            for (name, _, _), cookie in self._cookies.items()
            if _fits(cookie, url)
        ]
        return b"; ".join([b"%b=%b" % (name, value) for _, _, name, value in sorted(fitting)]) or None

    def _store(self, url: Url, line: bytes, now: float) -> None:
        pair, *attributes = line.split(b";")
        name, equals, value = (part.strip(_BLANKS) for part in pair.partition(b"="))
        if not equals or not _is_kept(name, value):
            return
        found = _attributes(attributes)
        domain = found.get(b"domain", b"").decode("latin-1").removeprefix(".").lower()
        # A domain without a dot would reach across hosts of different owners.
        if domain and (not _is_within(url.host, domain) or "." not in domain):
            return
        path = found.get(b"path", b"").decode("latin-1")
        if not path.startswith("/"):
            path = url.path.rpartition("/")[0] or "/"
        key = (name, domain or url.host, path)
        before = self._cookies.pop(key, None)
        expires = _expiry(found, now)
        if expires is not None and expires <= now:
            return
        self._drop_expired(now)
        if len(self._cookies) >= MAX_COOKIES:
            del self._cookies[min(self._cookies, key=lambda each: self._cookies[each].number)]
        self._count += 1
        number = self._count if before is None else before.number
        self._cookies[key] = _Cookie(value, path, domain or url.host, not domain, expires, number)

    def _drop_expired(self, now: float) -> None:
        self._cookies = {
            key: cookie
            for key, cookie in self._cookies.items()
            if cookie.expires is None or cookie.expires > now
        }


def is_kept_for(url: Url) -> bool:
    """Tell whether cookies are kept for a URL: https, and one of the hosts."""
    if url.scheme != "https":
        return False
    return url.host in _EXACT or any(_is_within(url.host, host) for host in _WITH_SUBDOMAINS)


def _is_kept(name: bytes, value: bytes) -> bool:
    if name not in _NAMES and not (name.startswith(_NAME_PREFIX) and _VALUE.fullmatch(name)):
        return False
    return len(name) + len(value) <= MAX_BYTES and _VALUE.fullmatch(value) is not None


def _attributes(parts: list[bytes]) -> dict[bytes, bytes]:
    """Return the attributes by lower-case name; of repeated ones the last counts."""
    pairs = (part.partition(b"=") for part in parts)
    return {name.strip(_BLANKS).lower(): value.strip(_BLANKS) for name, _, value in pairs}


def _expiry(found: dict[bytes, bytes], now: float) -> float | None:
    """Return when a cookie ends; `max-age` counts before `expires`, and what is unreadable not at all."""
    age = found.get(b"max-age", b"")
    if _NUMBER.fullmatch(age):
        return now + int(age)
    return seconds_since_1970(found.get(b"expires", b"").decode("latin-1"))


def _fits(cookie: _Cookie, url: Url) -> bool:
    if cookie.host_only:
        if url.host != cookie.domain:
            return False
    elif not _is_within(url.host, cookie.domain):
        return False
    folder = cookie.path if cookie.path.endswith("/") else cookie.path + "/"
    return url.path == cookie.path or url.path.startswith(folder)


def _is_within(host: str, domain: str) -> bool:
    return host == domain or host.endswith("." + domain)
