"""Where a request of a proxy client leads: its target and its Host, which must say the same."""

from __future__ import annotations

from execserver.egress.hosts import BadHost, has_port, split_authority

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.egress.http_heads import RequestHead

MISSING_HOST = "missing host"
MISMATCH = "Host header does not match request target"
_PORTS = {"http": 80, "https": 443}


class BadTarget(ValueError):
    """The request leads nowhere, or to two places; the text is the answer."""


class Target:
    """Host, port, and what the server there is asked for (`path`, in origin form).

    `is_tls`: an `https:` URL in plain form, which nobody can serve.
    """

    __slots__ = ("host", "is_tls", "path", "port")

    def __init__(self, host: str, port: int, path: str, *, is_tls: bool = False) -> None:
        self.host = host
        self.port = port
        self.path = path
        self.is_tls = is_tls


def target_of(request: RequestHead) -> Target:
    """Return where a request leads.  Raises BadTarget."""
    host_field = next(iter(request.all(b"host")), b"").decode("latin-1")
    try:
        return _connect(request, host_field) if request.method == "CONNECT" else _plain(request, host_field)
    except BadHost:
        raise BadTarget(MISSING_HOST) from None


def _connect(request: RequestHead, host_field: str) -> Target:
    # Without a port the reference takes 80, whatever the connection is for.
    host, port = split_authority(request.target, 80)
    if host_field:
        _compare(host, port, host_field, port)
    return Target(host, port, "")


def _plain(request: RequestHead, host_field: str) -> Target:
    if request.target.startswith("/") or request.target == "*":
        if not host_field:
            raise BadTarget(MISSING_HOST)
        host, port = split_authority(host_field, 80)
        return Target(host, port, request.target)
    scheme, mark, rest = request.target.partition("://")
    default = _PORTS.get(scheme.lower())
    if not mark or default is None:
        raise BadTarget(MISMATCH)
    authority, path = _split_path(rest)
    host, port = split_authority(authority, default)
    if host_field:
        _compare(host, port, host_field, default)
    return Target(host, port, path, is_tls=default == _PORTS["https"])


def _split_path(rest: str) -> tuple[str, str]:
    ends = [at for at in map(rest.find, "/?#") if at >= 0]
    end = min(ends, default=len(rest))
    authority, path = rest[:end], rest[end:].partition("#")[0]
    # A name before an @ would be read as the host by one program and as a user by another.
    if "@" in authority:
        raise BadTarget(MISMATCH)
    return authority, path if path.startswith("/") else f"/{path}"


def _compare(host: str, port: int, host_field: str, default: int) -> None:
    """Refuse a Host that names another place; one without a port says nothing of it."""
    try:
        other, other_port = split_authority(host_field, default)
    except BadHost:
        raise BadTarget(MISMATCH) from None
    if other != host or (has_port(host_field) and other_port != port):
        raise BadTarget(MISMATCH)
