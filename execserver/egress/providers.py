"""Whose credentials a process has, and where each may be sent: destinations, headers, shapes.

A destination is a host, a port and a path, always over TLS.  A path counts only as long as every server reads
it alike: with dot segments, encoded slashes and the like it is below no prefix but the whole host.
"""

from __future__ import annotations

import enum
import re

from execserver.egress.hosts import BadHost, split_authority
from execserver.egress.patterns import ConfigError, Pattern
from execserver.egress.value_patterns import BadPattern, ValuePattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HTTPS_PORT = 443
_SCHEME = "https://"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PREFIX = re.compile(r"[\x20-\x7e]*")
# What some server takes for another path: encoded dots, slashes, semicolons, percent signs and control
# characters, bytes that are in no UTF-8 (old decoders read `%c0%ae` as a dot), `%u002e`; backslashes.
_AMBIGUOUS = re.compile(
    r"%2e|%2f|%5c|%3b|%25|%[01]|%7f|%c[01]|%e0%[89]|%f0%8|%f[5-f]|%u|%(?![0-9a-f]{2})|\\|[^\x21-\x7e]",
    re.IGNORECASE,
)
_OF_THE_CONNECTION = frozenset(
    (*("host", "connection", "content-length", "transfer-encoding", "upgrade", "te", "trailer"), "keep-alive")
)


class Unmaskable(ValueError):
    """A credential cannot be masked; the text says why, and has nothing of its value."""


class Auth(enum.Enum):
    """How a credential is sent: three ways in `Authorization`, or in a header of the provider's own."""

    BEARER = "bearer"
    TOKEN = "token"
    BASIC = "basic"
    HEADER = "header"


class Destination:
    """Where a credential may be sent."""

    __slots__ = ("_path", "_pattern", "_port")

    def __init__(self, text: str, *, may_be_pattern: bool = True) -> None:
        """Read `[https://]HOST[:PORT][/PATH]`.  Raises Unmaskable."""
        rest = text[len(_SCHEME) :] if text.lower().startswith(_SCHEME) else text
        authority, slash, path = rest.partition("/")
        self._path = slash + path or "/"
        if "://" in authority + "/" + path or any(sign in rest for sign in "?#@"):
            raise Unmaskable("a destination is no https URL without user, query and fragment")
        if not _is_plain(self._path):
            raise Unmaskable("the path of a destination can be read in two ways")
        wildcard = "*" in authority
        if wildcard and not (may_be_pattern and _is_scoped(authority)):
            raise Unmaskable("a destination is no host and no `*.host`")
        try:
            stars = authority[: len(authority) - len(authority.lstrip("*."))]
            host, self._port = split_authority(authority[len(stars) :], HTTPS_PORT)
            self._pattern = Pattern(stars + host)
        except (BadHost, ConfigError):
            raise Unmaskable("the host of a destination cannot be read") from None

    def is_at(self, host: str, port: int) -> bool:
        """Return whether it is on this host and port."""
        return port == self._port and self._pattern.matches(host)

    def covers(self, host: str, port: int, target: str) -> bool:
        """Return whether a request to a host for a target in origin form goes there."""
        if not self.is_at(host, port) or not target.startswith("/"):
            return False
        path = target.partition("?")[0]
        if self._path == "/":
            return True
        if not _is_plain(path):
            return False
        below = self._path if self._path.endswith("/") else self._path + "/"
        return path == self._path or path.startswith(below)


def _is_scoped(authority: str) -> bool:
    rest = authority.removeprefix("*").removeprefix("*")
    return rest.startswith(".") and "*" not in rest and rest.count(".") > 1


def _is_plain(path: str) -> bool:
    if _AMBIGUOUS.search(path):
        return False
    return not any(segment.partition(";")[0] in (".", "..") for segment in path.split("/"))


class Provider:
    """A kind of credentials: in which variables they are, what they look like, and where they may go.

    `shape`, for the built-in ones: the prefixes that its values are known by, the one of all others last, and
    the least length.  Without it `patterns` tell.
    """

    __slots__ = (
        "_destinations",
        "auths",
        "from_env",
        "header",
        "name",
        "patterns",
        "prefix",
        "shape",
        "variables",
    )

    def __init__(
        self,
        name: str,
        variables: Sequence[str],
        destinations: Sequence[str],
        *,
        patterns: Sequence[str] = (),
        from_env: str | None = None,
        auths: Sequence[Auth] = (),
        header: str | None = None,
        prefix: str | None = None,
        shape: tuple[tuple[str, ...], int] | None = None,
    ) -> None:
        """Check what was configured.  Raises Unmaskable."""
        self.name = name
        self.variables = tuple(variables)
        self.from_env = from_env
        self.auths = frozenset(auths or (Auth.BEARER,))
        self.header = header.lower() if header is not None else None
        self.prefix = prefix or ""
        self.shape = shape
        self._check_header(prefix)
        if shape is None and not patterns:
            raise Unmaskable("it has no patterns")
        if not destinations and from_env is None:
            raise Unmaskable("it has no destinations")
        if not all(_VARIABLE.fullmatch(one) for one in (*variables, from_env or "X")):
            raise Unmaskable("the name of a variable cannot be read")
        self._destinations = [Destination(text) for text in destinations]
        try:
            self.patterns = [ValuePattern(text) for text in patterns]
        except BadPattern as error:
            raise Unmaskable(f"a pattern cannot be used: {error}") from None

    def _check_header(self, prefix: str | None) -> None:
        if (Auth.HEADER in self.auths) != (self.header is not None):
            raise Unmaskable("`header` and the auth `header` need each other")
        if self.header is None:
            if prefix is not None:
                raise Unmaskable("`prefix` needs `header`")
        elif not _HEADER.fullmatch(self.header) or self.header in _OF_THE_CONNECTION:
            raise Unmaskable("the header cannot carry a credential")
        if not _PREFIX.fullmatch(self.prefix):
            raise Unmaskable("the prefix does not fit into a header")

    def destinations(self, env: Mapping[bytes, bytes]) -> list[Destination]:
        """Return where the credentials of an environment may go.  Raises Unmaskable if that is nowhere."""
        found = list(self._destinations)
        named = b"" if self.from_env is None else env.get(self.from_env.encode(), b"")
        if named:
            text = named.decode("utf-8", "replace").removesuffix("/")
            found.append(Destination(text, may_be_pattern=False))
        if not found:
            raise Unmaskable(f"{self.from_env} names no destination")
        return found


_AUTHORIZATION = (Auth.BEARER, Auth.TOKEN, Auth.BASIC)
_GITHUB = (("github_pat_", "gho_", "ghu_", "ghs_", "ghr_", "ghp_"), 40)


def builtin() -> list[Provider]:
    """Return the kinds that every process with masking has."""
    return [
        Provider(
            "github",
            ("GH_TOKEN", "GITHUB_TOKEN"),
            ("api.github.com", "github.com", "uploads.github.com"),
            auths=_AUTHORIZATION,
            shape=_GITHUB,
        ),
        Provider(
            "github-enterprise",
            ("GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN"),
            (),
            from_env="GH_HOST",
            auths=_AUTHORIZATION,
            shape=_GITHUB,
        ),
        Provider(
            "openai",
            ("OPENAI_API_KEY",),
            ("api.openai.com",),
            from_env="OPENAI_BASE_URL",
            auths=_AUTHORIZATION,
            shape=(("sk-proj-", "sk-svcacct-", "sk-admin-", "sk-"), 51),
        ),
    ]
