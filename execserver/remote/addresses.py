"""Checks of what the user configures: base URL, environment id, and where an API key may be sent.

Texts and order of the checks are the contract's (remote mode).
"""

from __future__ import annotations

import re

from execserver.http_client.url import BadUrl, OtherScheme, parse
from execserver.remote.errors import ConfigurationError

_PREFIX = "environment registry configuration error: "
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SAFE_ID = re.compile(r"[A-Za-z0-9_-]+")
_OPENAI_HOSTS = ("openai.com", "openai.org")
_RESTRICTED = (
    "remote exec-server API-key authentication is restricted to HTTPS openai.com and openai.org hosts "
    "and subdomains or loopback hosts"
)


def check_api_key_host(base_url: str, further_host: str | None = None) -> None:
    """Raise ConfigurationError unless an API key may be sent to this URL's host.

    `further_host` is one that the user has named for it: exactly that host, and over https only.
    """
    try:
        url = parse(base_url)
    except OtherScheme as other:
        if not other.text.partition(":")[2].startswith("//"):
            raise ConfigurationError("remote exec-server registration URL must include a host") from None
        raise ConfigurationError(_RESTRICTED) from None
    except BadUrl as error:
        raise ConfigurationError(f"invalid remote exec-server registration URL: {error}") from None
    host = url.address[0]
    is_named = further_host is not None and host == further_host.strip().lower().strip("[]")
    if url.is_loopback or (url.scheme == "https" and (is_named or _is_openai(host))):
        return
    raise ConfigurationError(_RESTRICTED)


def check_secure(text: str, scheme: str = "https") -> None:
    """Raise ConfigurationError unless a credential may go there: with TLS, or to the loopback."""
    try:
        url = parse(re.sub(r"^ws(?=s?:)", "http", text.strip().lower()))
    except BadUrl as error:
        raise ConfigurationError(f"{_PREFIX}invalid URL: {error}") from None
    if url.scheme != "https" and not url.is_loopback:
        raise ConfigurationError(f"{_PREFIX}remote transport requires {scheme} for non-loopback endpoints")


def check_chatgpt_url(text: str) -> None:
    """Raise ConfigurationError unless a ChatGPT token may go to this URL."""
    try:
        is_plain = parse(text).scheme == "https" and "@" not in text and "#" not in text
    except BadUrl:
        is_plain = False
    if not is_plain:
        raise ConfigurationError("ChatGPT token registry URLs must use HTTPS without userinfo or fragments")


def checked_destination(text: str) -> str:
    """Return the URL of a WebSocket to forward to, without credentials.  Raises ConfigurationError."""
    from urllib.parse import urlsplit  # late: only `forward` has a destination

    prefix = "failed to configure exec-server websocket: "
    if not _SCHEME.match(text.strip()):
        raise ConfigurationError(f"{prefix}relative URL without a base")
    try:
        url = urlsplit(text.strip())
        port = url.port
    except ValueError:
        raise ConfigurationError(f"{prefix}the destination is no valid URL") from None
    if url.scheme not in ("ws", "wss"):
        raise ConfigurationError(f"{prefix}forward destination must be a ws:// or wss:// URL")
    if not url.hostname:
        raise ConfigurationError(f"{prefix}the destination has no host")
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    place = host if port is None else f"{host}:{port}"
    return url._replace(netloc=place, fragment="").geturl()


def checked_environment_id(text: str, kind: str = "environment") -> str:
    """Return an id that is safe as one segment of a path.  Raises ConfigurationError.

    The reference puts any text into the path, where `..` climbs and `?` starts a query.
    """
    name = text.strip()
    prefix = _PREFIX.replace("environment", kind, 1)
    if not name:
        raise ConfigurationError(f"{prefix}{kind} id is required for remote exec-server registration")
    if not _SAFE_ID.fullmatch(name):
        raise ConfigurationError(
            f"{prefix}{kind} id `{name}` cannot be used: only letters, digits, `_` and `-` are taken, "
            f"because anything else would change the address that is called; use an {kind} with such an id"
        )
    return name


def checked_base_url(text: str, kind: str = "environment") -> str:
    """Return the base URL without surrounding blanks and trailing slashes.  Raises ConfigurationError."""
    base = text.strip().rstrip("/")
    if not base:
        prefix = _PREFIX.replace("environment", kind, 1)
        raise ConfigurationError(f"{prefix}{kind} registry base URL is required")
    return base


def _is_openai(host: str) -> bool:
    return any(host == name or host.endswith(f".{name}") for name in _OPENAI_HOSTS)
