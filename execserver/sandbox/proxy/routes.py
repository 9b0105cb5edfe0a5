"""Which of the host's proxies a confined process may reach, read from its environment (managed network).

Pure.  A variable that names a proxy on the host's loopback becomes a route: the process gets a port on its
own loopback instead; everything else in the value stays.  Other variables stay as they are and lead nowhere.
The names and texts are those of the wire contract's proxy mode.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

KEYS = frozenset(
    (
        *(b"HTTP_PROXY", b"HTTPS_PROXY", b"ALL_PROXY", b"FTP_PROXY"),
        *(b"YARN_HTTP_PROXY", b"YARN_HTTPS_PROXY"),
        *(b"NPM_CONFIG_HTTP_PROXY", b"NPM_CONFIG_HTTPS_PROXY", b"NPM_CONFIG_PROXY"),
        *(b"BUNDLE_HTTP_PROXY", b"BUNDLE_HTTPS_PROXY", b"PIP_PROXY"),
        *(b"DOCKER_HTTP_PROXY", b"DOCKER_HTTPS_PROXY", b"WS_PROXY", b"WSS_PROXY"),
    )
)
NO_VARIABLES = "managed proxy mode requires proxy environment variables"
NO_ENDPOINTS = "managed proxy mode requires parseable loopback proxy endpoints"
FAILURE = "failed to prepare host proxy routing bridge: "
MAX_ENDPOINTS = 16  # there are 16 names, but each can be spelled in upper and lower case

# Of a network of our own making.  Fixed, since every port in it is free: the environment that names them is
# complete before the network exists.  Above what Linux gives to connections by itself (60999).
HTTP_PORT = 61001
SOCKS_PORT = 61002

_HOSTS = {b"localhost": b"127.0.0.1", b"127.0.0.1": b"127.0.0.1", b"::1": b"::1"}
_PORTS = {b"http": 80, b"https": 443}
_SOCKS_PORT = 1080

# Address and port on the host's loopback.
Endpoint = tuple[bytes, int]


class RouteError(Exception):
    """There is nothing to route; the message is the wire contract's."""


class Route:
    """One variable: its index in the environment, and where host and port are within the entry."""

    __slots__ = ("end", "endpoint", "index", "start")

    def __init__(self, index: int, start: int, end: int, endpoint: Endpoint) -> None:
        self.index = index
        self.start = start
        self.end = end
        self.endpoint = endpoint


class Routes:
    """All routes of one environment; `endpoints` are the distinct ones, in the order of their first use."""

    __slots__ = ("endpoints", "routes")

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = list(routes)
        self.endpoints: list[Endpoint] = list(dict.fromkeys(route.endpoint for route in routes))

    def rewrite(self, env: Sequence[bytes], ports: Sequence[int]) -> list[bytes]:
        """Return the environment with each route's host and port replaced by those of its listener."""
        rewritten = list(env)
        port_of = dict(zip(self.endpoints, ports, strict=True))
        for route in self.routes:
            entry = rewritten[route.index]
            listener = b"127.0.0.1:%d" % port_of[route.endpoint]
            rewritten[route.index] = entry[: route.start] + listener + entry[route.end :]
        return rewritten


def find_routes(env: Sequence[bytes]) -> Routes:
    """Return the routes of an environment of `name=value` entries.  Raises RouteError."""
    routes = []
    named = False
    for index, entry in enumerate(env):
        name, _, value = entry.partition(b"=")
        if name.upper() not in KEYS or not value.strip():
            continue
        named = True
        found = _endpoint(value)
        if found is not None:
            start, end, endpoint = found
            offset = len(name) + 1
            routes.append(Route(index, offset + start, offset + end, endpoint))
    if not named:
        raise RouteError(NO_VARIABLES)
    if not routes:
        raise RouteError(NO_ENDPOINTS)
    found_routes = Routes(routes)
    if len(found_routes.endpoints) > MAX_ENDPOINTS:
        raise RouteError(f"at most {MAX_ENDPOINTS} different proxy endpoints can be routed")
    return found_routes


def _endpoint(value: bytes) -> tuple[int, int, Endpoint] | None:
    """Find host and port in a proxy's address, with or without a scheme; None if it is not on loopback."""
    scheme, mark, _ = value.partition(b"://")
    start = len(scheme) + len(mark) if mark else len(value) - len(value.lstrip())
    scheme = scheme.strip().lower() if mark else b"http"
    end = min((at for at in map(value.find, (b"/", b"?", b"#"), (start,) * 3) if at >= 0), default=len(value))
    end = start + len(value[start:end].rstrip())
    start = max(start, value.rfind(b"@", start, end) + 1)  # a user name and password stay in the value
    host, port = _split(value[start:end])
    # Any other host is not the machine's own: the process has no way there.
    address = _HOSTS.get(host.lower())
    number = _port(port, scheme)
    return None if address is None or number is None else (start, end, (address, number))


def _split(authority: bytes) -> tuple[bytes, bytes]:
    """Return host, without brackets, and port, which may be empty."""
    if authority.startswith(b"["):
        host, bracket, port = authority[1:].partition(b"]")
        return (host, port[1:]) if bracket and port[:1] in (b"", b":") else (b"", b"")
    host, _, port = authority.partition(b":")
    return host, port


def _port(text: bytes, scheme: bytes) -> int | None:
    if not text:
        return _SOCKS_PORT if scheme.startswith(b"socks") else _PORTS.get(scheme)
    if not text.isdigit() or len(text) > 5:
        return None
    number = int(text)
    return number if 0 < number < 65536 else None
