"""The streams of one environment: whose each is, and what becomes of them when a side is lost.

A stream id belongs to the harness key that used it first.  It stays so for a grace time after the harness's
websocket was lost, because a stream of two ends that acknowledge is taken up again over a new one; the other
end is told of the loss at once, by a reset whose reason only such ends know how to outlive.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from execserver.relay import frames
from execserver.relay.limits import Bucket
from execserver.relay.links import Link, Shared
from execserver.relay.metrics import TO_EXECUTOR, TO_HARNESS, Metrics
from execserver.services.delay_queue import DelayQueue
from execserver.wire.relay_frames import RESET_EXECUTOR_LOST, RESET_HARNESS_LOST

_log = logging.getLogger(__name__)

# Reasons of resets of the relay's own; no end outlives these.
RESET_TAKEN_OVER = "relay_executor_taken_over"
RESET_TOO_MANY = "relay_too_many_streams"
RESET_NOT_YOURS = "relay_stream_of_another_harness"


class Route:
    """One stream: its harness, or None during the grace time."""

    __slots__ = ("environment", "fingerprint", "harness", "key")

    def __init__(self, environment: Environment, key: bytes, harness: Link) -> None:
        self.environment = environment
        self.key = key
        self.fingerprint = harness.identity.fingerprint
        self.harness: Link | None = harness


class Environment:
    """An executor and the harnesses connected to it; an `Owner` of their links."""

    __slots__ = (
        "_bucket",
        "_graces",
        "_metrics",
        "_on_empty",
        "_shared",
        "executor",
        "harnesses",
        "name",
        "routes",
    )

    def __init__(
        self,
        name: str,
        shared: Shared,
        graces: DelayQueue[Route],
        metrics: Metrics,
        on_empty: Callable[[Environment], None],
    ) -> None:
        self.name = name
        self.executor: Link | None = None
        self.harnesses: set[Link] = set()
        self.routes: dict[bytes, Route] = {}
        self._shared = shared
        self._graces = graces
        self._metrics = metrics
        self._on_empty = on_empty
        self._bucket: Bucket | None = None
        if shared.limits.bytes_per_s:
            rate = shared.limits.bytes_per_s
            self._bucket = Bucket(rate, rate, time.monotonic())

    @property
    def links(self) -> list[Link]:
        """All its websockets."""
        return [*self.harnesses, *([] if self.executor is None else [self.executor])]

    def settle(self) -> None:
        """Say so when nothing is left."""
        if self.executor is None and not self.harnesses and not self.routes:
            self._on_empty(self)

    def attach(self, link: Link) -> None:
        """Take a new websocket in; one of the same executor is replaced."""
        if link.identity.is_executor:
            before, self.executor = self.executor, link
            if before is not None:
                before.give_up("replaced")
                self.reset_all(RESET_EXECUTOR_LOST, forget=False)
        else:
            self.harnesses.add(link)

    def receive(self, link: Link, messages: list[bytes]) -> None:
        """Forward what came in."""
        if link is self.executor:
            self._from_executor(link, messages)
        elif link in self.harnesses:
            self._from_harness(link, messages)
        if self._bucket is not None:
            wait = self._bucket.take(sum(map(len, messages)), time.monotonic())
            if wait > 0:
                self._metrics.count("held_back", "rate")
                link.throttle(wait)

    def lost(self, link: Link, why: str) -> None:
        """Tell the other side that a websocket is gone."""
        self._metrics.count("closed", why)
        identity = link.identity
        _log.info(
            "%s gone: environment=%s registration=%s peer=%s reason=%s streams=%d",
            *(identity.role, self.name, identity.registration_id, link.peer, why),
            len(self.routes if identity.is_executor else link.streams),
        )
        if link is self.executor:
            self.executor = None
            self.reset_all(RESET_EXECUTOR_LOST, forget=False)
        elif link in self.harnesses:
            self.harnesses.discard(link)
            for key in list(link.streams):
                self._detach(self.routes[key])
        link.streams.clear()
        self.settle()

    def reset_all(self, reason: str, *, forget: bool) -> None:
        """Reset every stream at its harness, and forget it if nothing can outlive the reason."""
        for route in list(self.routes.values()):
            if route.harness is not None:
                self._reset(route.harness, route.key, reason)
            if forget:
                self.forget(route)

    def forget(self, route: Route) -> None:
        """Remove a stream."""
        self.routes.pop(route.key, None)
        if route.harness is not None:
            route.harness.streams.discard(route.key)
        self._graces.discard(route)

    def _from_executor(self, executor: Link, messages: list[bytes]) -> None:
        metrics = self._metrics
        for message in messages:
            key, kind = frames.peek(message)
            route = self.routes.get(key) or self._odd_route(executor, message)
            harness = None if route is None else route.harness
            if route is None or harness is None:
                metrics.count("dropped_frames", "no_harness")
                continue
            harness.send(key, message)
            metrics.frames[TO_HARNESS] += 1
            metrics.bytes[TO_HARNESS] += len(message)
            if harness.hold_back(executor):
                metrics.count("held_back", "slow_harness")
            if kind == frames.RESET:
                self.forget(route)

    def _odd_route(self, link: Link, message: bytes) -> Route | None:
        """Return the route of a frame in an unusual form, if it is a valid one of a stream there is."""
        try:
            return self.routes.get(frames.checked_key(message, self._shared.limits.stream_id_bytes))
        except frames.InvalidFrame:
            self._metrics.count("dropped_frames", "invalid")
            link.complain()
            return None

    def _from_harness(self, harness: Link, messages: list[bytes]) -> None:
        metrics = self._metrics
        for message in messages:
            key, kind = frames.peek(message)
            route = self.routes.get(key)
            if route is None or route.harness is not harness:
                route = self._claim(harness, message, kind)
                if route is None:
                    continue
            executor = self.executor
            if executor is None:
                metrics.count("dropped_frames", "no_executor")
                continue
            executor.send(harness, message)
            metrics.frames[TO_EXECUTOR] += 1
            metrics.bytes[TO_EXECUTOR] += len(message)
            if executor.hold_back(harness, harness):
                metrics.count("held_back", "slow_executor")
            if kind == frames.RESET:
                self.forget(route)

    def _claim(self, harness: Link, message: bytes, kind: int) -> Route | None:
        """Return the route of a frame whose stream is not this harness's yet; None: do not forward it."""
        limits = self._shared.limits
        try:
            key = frames.checked_key(message, limits.stream_id_bytes)
        except frames.InvalidFrame:
            self._metrics.count("dropped_frames", "invalid")
            harness.complain()
            return None
        route = self.routes.get(key)
        if route is None:
            return self._open(harness, key, kind)
        if route.harness is harness:
            return route
        if route.fingerprint != harness.identity.fingerprint:
            self._metrics.count("dropped_frames", "not_yours")
            self._reset(harness, key, RESET_NOT_YOURS)
            return None
        if route.harness is not None and kind != frames.RESUME:
            self._metrics.count("dropped_frames", "stale")  # the websocket that the stream has left
            return None
        self._move(route, harness)
        return route

    def _open(self, harness: Link, key: bytes, kind: int) -> Route | None:
        if kind == frames.RESET:
            return None  # of a stream that is gone: there is nothing to end
        limit = self._shared.limits.streams
        # One harness alone does not take all there are.
        if len(harness.streams) >= max(1, limit // 2) or (
            len(self.routes) >= limit and not self._make_room()
        ):
            self._metrics.count("dropped_frames", "too_many_streams")
            self._reset(harness, key, RESET_TOO_MANY)
            return None
        route = self.routes[key] = Route(self, key, harness)
        harness.streams.add(key)
        return route

    def _make_room(self) -> bool:
        """Forget the stream that has been without a harness for longest; tell whether there was one."""
        for route in self.routes.values():
            if route.harness is None:
                self.forget(route)
                return True
        return False

    def _move(self, route: Route, harness: Link) -> None:
        if route.harness is not None:
            route.harness.streams.discard(route.key)
        self._graces.discard(route)
        route.harness = harness
        harness.streams.add(route.key)
        self._metrics.count("resumed_streams")

    def _detach(self, route: Route) -> None:
        route.harness = None
        self._graces.add(route)
        if self.executor is not None:
            self._reset(self.executor, route.key, RESET_HARNESS_LOST)

    def _reset(self, link: Link, key: bytes, reason: str) -> None:
        queued = link.send_own(frames.reset(key, reason))
        self._metrics.count("resets" if queued else "dropped_frames", reason if queued else "reset")
