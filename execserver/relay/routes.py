"""The streams of one environment: which harness each belongs to, and what a lost WebSocket does to them.

A stream id belongs to the harness key that used it first.  It keeps this owner for a grace period after the
harness's WebSocket was lost, because two ends with reliable streams resume them over a new one.  The loss is
reported to the other end at once, by a reset with a reason that only reliable streams survive.
"""

from __future__ import annotations

import logging
import time
from typing import Protocol

from execserver.eventloop.delay_queue import DelayQueue
from execserver.relay import frames
from execserver.relay.limits import Bucket
from execserver.relay.link_context import Shared
from execserver.relay.links import WebSocketLink
from execserver.relay.metrics import TO_EXECUTOR, TO_HARNESS, Metrics
from execserver.wire.relay_frames import RESET_EXECUTOR_LOST, RESET_HARNESS_LOST

_log = logging.getLogger(__name__)

# Reasons of the relay's own resets; even a reliable stream ends with these.
RESET_TAKEN_OVER = "relay_executor_taken_over"
RESET_TOO_MANY = "relay_too_many_streams"
RESET_NOT_YOURS = "relay_stream_of_another_harness"


class Route:
    """One stream: its harness, or None during the grace period."""

    __slots__ = ("environment", "fingerprint", "harness", "key")

    def __init__(
        self, environment: Environment, key: bytes, fingerprint: bytes, harness: WebSocketLink | None
    ) -> None:
        self.environment = environment
        self.key = key
        # Kept here because the stream outlives the link that opened it.
        self.fingerprint = fingerprint
        self.harness = harness


class Home(Protocol):
    """What holds the environments.  Called in the event loop, so it must not block."""

    def executor_left(self, environment: Environment) -> None:
        """Note that the executor's WebSocket is gone and no other has taken its place."""

    def emptied(self, environment: Environment) -> None:
        """Note that nobody and nothing is left in an environment."""


class Environment:
    """An executor and the harnesses connected to it; the `Owner` of their links."""

    __slots__ = (
        "_bucket",
        "_graces",
        "_home",
        "_metrics",
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
        home: Home,
    ) -> None:
        self.name = name
        self.executor: WebSocketLink | None = None
        self.harnesses: set[WebSocketLink] = set()
        self.routes: dict[bytes, Route] = {}
        self._shared = shared
        self._graces = graces
        self._metrics = metrics
        self._home = home
        self._bucket: Bucket | None = None
        if shared.limits.bytes_per_s:
            rate = shared.limits.bytes_per_s
            # One second's worth may pass at once, so that short bursts are not slowed down.
            self._bucket = Bucket(rate, rate, time.monotonic())

    @property
    def links(self) -> list[WebSocketLink]:
        """All its WebSockets."""
        return [*self.harnesses, *([] if self.executor is None else [self.executor])]

    def settle(self) -> None:
        """Report to the rendezvous if nothing is left, so that an unused environment costs no memory."""
        if self.executor is None and not self.harnesses and not self.routes:
            self._home.emptied(self)

    def attach(self, link: WebSocketLink) -> None:
        """Add a new WebSocket; it replaces an earlier one of the same executor."""
        if link.identity.is_executor:
            # Replaced before the old link ends: `lost` must not take the new one for the one that is gone.
            before, self.executor = self.executor, link
            if before is not None:
                # The executor connected again before the loss of its old WebSocket was noticed here.
                before.give_up("replaced")
                self.reset_all(RESET_EXECUTOR_LOST, forget=False)
        else:
            self.harnesses.add(link)

    def receive(self, link: WebSocketLink, messages: list[bytes]) -> None:
        """Forward received messages, in order."""
        if link is self.executor:
            self._from_executor(link, messages)
        elif link in self.harnesses:
            self._from_harness(link, messages)
        # Counted after forwarding: nothing is dropped for the rate, its sender is only not read for a while.
        if self._bucket is not None:
            wait = self._bucket.take(sum(map(len, messages)), time.monotonic())
            if wait > 0:
                self._metrics.count("held_back", "rate")
                link.throttle(wait)

    def lost(self, link: WebSocketLink, why: str) -> None:
        """Report to the other side that a WebSocket is gone."""
        self._metrics.count("closed", why)
        identity = link.identity
        _log.info(
            "%s gone: environment=%s registration=%s peer=%s reason=%s streams=%d",
            *(identity.role, self.name, identity.registration_id, link.peer, why),
            len(self.routes if identity.is_executor else link.streams),
        )
        if link is self.executor:
            self.executor = None
            self._home.executor_left(self)
            self.reset_all(RESET_EXECUTOR_LOST, forget=False)
        elif link in self.harnesses:
            self.harnesses.discard(link)
            # The executor does not see a harness leave unless the relay says so.
            for key in list(link.streams):
                self._detach(self.routes[key])
        link.streams.clear()
        self.settle()

    def reset_all(self, reason: str, *, forget: bool) -> None:
        """Reset every stream at its harness; with `forget` remove it, as nothing survives the reason."""
        for route in list(self.routes.values()):
            if route.harness is not None:
                self._reset(route.harness, route.key, reason)
            if forget:
                self.forget(route)

    def forget(self, route: Route) -> None:
        """Remove a stream; its id may be used again."""
        self.routes.pop(route.key, None)
        if route.harness is not None:
            route.harness.streams.discard(route.key)
        self._graces.discard(route)

    def _from_executor(self, executor: WebSocketLink, messages: list[bytes]) -> None:
        metrics = self._metrics
        for message in messages:
            key, kind = frames.peek(message)
            # Only harnesses open streams.  A frame in an unusual form has an empty key here.
            route = self.routes.get(key) or self._odd_route(executor, message)
            harness = None if route is None else route.harness
            if route is None or harness is None:
                metrics.count("dropped_frames", "no_harness")
                continue
            # At a harness the streams take turns, so a keystroke in one does not wait for another's output.
            harness.send(key, message)
            metrics.frames[TO_HARNESS] += 1
            metrics.bytes[TO_HARNESS] += len(message)
            # The executor is the only sender here, so all that waits counts.
            if harness.hold_back(executor):
                metrics.count("held_back", "slow_harness")
            # Final in this direction whatever the reason: only the relay resets with a reason to wait.
            if kind == frames.RESET:
                self.forget(route)

    def _odd_route(self, link: WebSocketLink, message: bytes) -> Route | None:
        """Return the route of a frame in an unusual form, None if it is invalid or its stream is unknown."""
        try:
            return self.routes.get(frames.checked_key(message, self._shared.limits.stream_id_bytes))
        except frames.InvalidFrame:
            self._metrics.count("dropped_frames", "invalid")
            link.complain()
            return None

    def _from_harness(self, harness: WebSocketLink, messages: list[bytes]) -> None:
        metrics = self._metrics
        for message in messages:
            key, kind = frames.peek(message)
            route = self.routes.get(key)
            # The usual frame, of a known stream on its own link, needs no further check than this look-up.
            if route is None or route.harness is not harness:
                route = self._claim(harness, message, kind)
                if route is None:
                    continue
            executor = self.executor
            if executor is None:
                metrics.count("dropped_frames", "no_executor")
                continue
            # At the executor the harnesses take turns, whatever the number of their streams.
            executor.send(harness, message)
            metrics.frames[TO_EXECUTOR] += 1
            metrics.bytes[TO_EXECUTOR] += len(message)
            if executor.hold_back(harness, harness):
                metrics.count("held_back", "slow_executor")
            if kind == frames.RESET:
                self.forget(route)

    def _claim(self, harness: WebSocketLink, message: bytes, kind: int) -> Route | None:
        """Return the route of a frame whose stream is not on this link yet; None: do not forward it."""
        limits = self._shared.limits
        try:
            # Read as the executor will: `peek` checks neither the form of an id nor an unusual frame.
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
            # The reset goes to this harness only: it must not end another's stream.
            self._metrics.count("dropped_frames", "not_yours")
            self._reset(harness, key, RESET_NOT_YOURS)
            return None
        # Two links with the same key: a harness begins with `resume` on its new WebSocket, so any other frame
        # comes late from the old one and must not move the stream back.
        if route.harness is not None and kind != frames.RESUME:
            self._metrics.count("dropped_frames", "stale")
            return None
        self._move(route, harness)
        return route

    def _open(self, harness: WebSocketLink, key: bytes, kind: int) -> Route | None:
        if kind == frames.RESET:
            return None  # of a stream that is gone: there is nothing to end
        limit = self._shared.limits.streams
        # One harness alone must not take all streams of its environment.
        if len(harness.streams) >= max(1, limit // 2) or (
            len(self.routes) >= limit and not self._make_room()
        ):
            self._metrics.count("dropped_frames", "too_many_streams")
            self._reset(harness, key, RESET_TOO_MANY)
            return None
        route = self.routes[key] = Route(self, key, harness.identity.fingerprint, harness)
        harness.streams.add(key)
        return route

    def _make_room(self) -> bool:
        """Forget the oldest stream without a harness; return whether there was one."""
        for route in self.routes.values():
            if route.harness is None:
                self.forget(route)
                return True
        return False

    def _move(self, route: Route, harness: WebSocketLink) -> None:
        # The old link may be open still: its loss must not detach the stream from the new one.
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

    def _reset(self, link: WebSocketLink, key: bytes, reason: str) -> None:
        # Best effort, as the reference's own resets are: a peer that does not read must not fill memory.
        queued = link.send_own(frames.reset(key, reason))
        self._metrics.count("resets" if queued else "dropped_frames", reason if queued else "reset")
