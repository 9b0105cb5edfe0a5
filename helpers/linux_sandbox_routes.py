"""Proxy routes of the inner stage: variables that lead to Unix sockets, which another sandbox has made."""

from __future__ import annotations

from execserver.protocol.json_text import NotJson, parse
from execserver.sandbox.proxy.bridge import bring_up_loopback, pass_listeners, start_bridge
from execserver.sandbox.proxy.routes import MAX_ENDPOINTS, RouteError, Routes, find_routes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MOST_PATH_BYTES = 107  # what `sun_path` holds, without its NUL


class RouteSpecError(Exception):
    """The routes cannot be used; the message says why."""


def activate(spec: str, env: Sequence[bytes], confine: Callable[[], None]) -> list[bytes]:
    """Listen on loopback for every route and return the environment that leads there.

    A proxy bridge, a process that `confine` ties to this one, forwards the bytes.  Raises RouteSpecError.
    """
    paths = _read(spec)
    try:
        routes = find_routes(env).routes
    except RouteError as error:
        raise RouteSpecError(str(error)) from None
    routed = []
    for route in routes:
        path = paths.pop(env[route.index].partition(b"=")[0], None)
        if path is not None:
            route.endpoint = (path, 0)
            routed.append(route)
    if paths:
        missing = next(iter(paths)).decode("utf-8", "replace")
        raise RouteSpecError(f"missing proxy env key {missing}")
    found = Routes(routed)
    try:
        bring_up_loopback()
        bridge = start_bridge(found.endpoints, confine)
        rewritten = found.rewrite(env, pass_listeners(bridge.channel, [0] * len(found.endpoints)))
        bridge.close_channel()
    except OSError as error:
        raise RouteSpecError(str(error.strerror)) from None
    return rewritten


def _read(spec: str) -> dict[bytes, bytes]:
    """Return variable to path of every route.  Raises RouteSpecError."""
    try:
        value = parse(spec.encode("utf-8", "surrogateescape"))
    except NotJson as error:
        raise RouteSpecError(str(error)) from None
    routes = value.get("routes") if isinstance(value, dict) else None
    if not isinstance(routes, list):
        raise RouteSpecError("missing field `routes`")
    if not routes:
        raise RouteSpecError("proxy routing spec contained no routes")
    found = {}
    for route in routes:
        key = route.get("env_key") if isinstance(route, dict) else None
        path = route.get("uds_path") if isinstance(route, dict) else None
        if not isinstance(key, str) or not isinstance(path, str):
            raise RouteSpecError("a route needs `env_key` and `uds_path`")
        native = path.encode("utf-8", "surrogateescape")
        if not native.startswith(b"/") or len(native) > _MOST_PATH_BYTES or b"\0" in native:
            raise RouteSpecError(f"not the path of a socket: {path}")
        found[key.encode("utf-8", "surrogateescape")] = native
    if len(found) > MAX_ENDPOINTS:
        raise RouteSpecError(f"at most {MAX_ENDPOINTS} routes are possible")
    return found
