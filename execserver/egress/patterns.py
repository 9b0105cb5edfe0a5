"""Domain patterns: `host`, `*.host` (below it), `**.host` (it and below), `*` and `?` elsewhere.

`*` stands for any text, dots too, and `?` for one character.  A port is cut off and means nothing.
"""

from __future__ import annotations

from execserver.egress.hosts import BadHost, normal_host
from execserver.wildcards import Wildcards

_WILD = frozenset("*?")
_UNSUPPORTED = frozenset("/\\{}%,'\"()^!#@;&=+|<>`~$") | frozenset(map(chr, range(0x21))) | {"\x7f"}
_EVERYTHING_DENIED = (
    "invalid value for network.denied_domains: * "
    "(allowed exact hosts or scoped wildcards like *.example.com or **.example.com)"
)


class ConfigError(ValueError):
    """A policy cannot be understood; the text is the wire contract's."""


class Pattern:
    """One pattern.  `exact` is the host it stands for alone, None if it has wildcards."""

    __slots__ = ("_glob", "_wildcards", "exact", "text")

    def __init__(self, text: str) -> None:
        """Read a pattern.  Raises ConfigError."""
        self.text = text
        self.exact: str | None = None
        plain = _without_port(_checked(text)).lower()
        if plain == "[*]":
            plain = "*"
        if "[" in plain or "]" in plain or ":" in plain:
            self.exact = self._glob = _address(text, plain)
            return
        below, rest = _split(plain)
        rest = _in_ascii(text, rest.rstrip("."))
        if not rest:
            raise ConfigError("domain pattern is empty")
        if "**" in rest:
            raise ConfigError(f"unsupported repeated wildcard: {text}")
        self._glob = f"*.{rest}" if below else rest
        if _WILD.isdisjoint(self._glob):
            self.exact = self._glob
        globs = [rest, self._glob] if below == "**." else [self._glob]
        self._wildcards = [Wildcards(glob) for glob in globs]

    @property
    def matches_everything(self) -> bool:
        """True for `*`."""
        return self._glob == "*"

    def matches(self, host: str) -> bool:
        """Return whether a normal host is meant."""
        if self.exact is not None:
            return host == self.exact
        return any(wildcards.matches(host) for wildcards in self._wildcards)


def denying(text: str) -> Pattern:
    """Return a pattern of hosts to deny, which cannot be all.  Raises ConfigError."""
    pattern = Pattern(text)
    if pattern.matches_everything:
        raise ConfigError(_EVERYTHING_DENIED)
    return pattern


def _checked(text: str) -> str:
    if not _UNSUPPORTED.isdisjoint(text):
        raise ConfigError(f"unsupported domain pattern syntax: {text}")
    return text


def _without_port(text: str) -> str:
    head, bracket, rest = text.rpartition("]")
    if bracket:
        return head + bracket if rest.startswith(":") else text
    # The colons of an address without brackets are its own.
    return text.partition(":")[0] if text.count(":") == 1 else text


def _split(plain: str) -> tuple[str, str]:
    for below in ("**.", "*."):
        if plain.startswith(below):
            return below, plain[len(below) :]
    return "", plain


def _in_ascii(text: str, host: str) -> str:
    """Write a name as its clients do: in Punycode where it is not ASCII.  Raises ConfigError."""
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode().lower()
    except UnicodeError:
        raise ConfigError(f"unsupported domain pattern syntax: {text}") from None


def _address(text: str, plain: str) -> str:
    try:
        return normal_host(plain)
    except BadHost:
        raise ConfigError(f"brackets are only supported for IPv6 literals or [*]: {text}") from None
