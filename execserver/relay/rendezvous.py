"""The rendezvous: who may come in with which credential, and the environments with somebody in them."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable

from gevent.event import Event

from execserver.relay.identity import Identity
from execserver.relay.limits import Limits
from execserver.relay.links import Link, Shared
from execserver.relay.metrics import Metrics
from execserver.relay.routes import RESET_TAKEN_OVER, Environment, Route
from execserver.relay.state import Outcome, Registration, RelayState
from execserver.relay.tokens import TokenBook, digest_of
from execserver.relay.wires import Wire
from execserver.services.deadline import at_most
from execserver.services.delay_queue import DelayQueue
from execserver.wire.websocket import GOING_AWAY, POLICY_VIOLATION

_log = logging.getLogger(__name__)

_UNAUTHORIZED, _TOO_MANY, _UNAVAILABLE = 401, 429, 503


class NotAdmitted(Exception):
    """A websocket is refused: the status, and the reason as the newer reference names it in a header."""

    def __init__(self, status: int, reason: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason


class Rendezvous:
    """All environments; the `Presence` that the registry asks."""

    def __init__(
        self,
        state: RelayState,
        book: TokenBook,
        limits: Limits,
        metrics: Metrics,
        now: Callable[[], float],
        tcp_timeout_s: float,
    ) -> None:
        self._state = state
        self._book = book
        self._limits = limits
        self._metrics = metrics
        self._now = now
        self._shared = Shared(limits, tcp_timeout_s)
        self._graces: DelayQueue[Route] = DelayQueue(limits.resume_grace_s, self._expire)
        self._environments: dict[str, Environment] = {}
        self._arrivals: dict[str, Event] = {}
        self.draining = False

    def admit(self, environment_id: str, ticket: str) -> Identity:
        """Return who a credential belongs to, or raise NotAdmitted, whose text does not repeat it."""
        if self.draining:
            raise NotAdmitted(_UNAVAILABLE, "pod_draining", "this relay is shutting down")
        digest = digest_of(ticket)
        registration = self._state.registration(environment_id)
        if registration is None:
            raise NotAdmitted(_UNAUTHORIZED, "unknown_route", "no executor has registered this environment")
        identity = self._identity(registration, digest)
        if identity is None or not self._book.holds(identity.token_id):
            raise NotAdmitted(_UNAUTHORIZED, "expired", "this URL is not valid, or not any more")
        environment = self._environments.get(environment_id)
        if not identity.is_executor and environment and len(environment.harnesses) >= self._limits.harnesses:
            raise NotAdmitted(_TOO_MANY, "too_many_harnesses", "too many harnesses are connected")
        return identity

    def attach(self, identity: Identity, wire: Wire, peer: str, early: bytes) -> None:
        """Take an upgraded socket over."""
        name = identity.environment_id
        environment = self._environments.get(name)
        if environment is None:
            environment = Environment(name, self._shared, self._graces, self._metrics, self._forget)
            self._environments[name] = environment
        link = Link(wire, peer, identity, environment, self._shared)
        environment.attach(link)
        _log.info(
            "%s connected: environment=%s registration=%s peer=%s",
            *(identity.role, name, identity.registration_id, peer),
        )
        link.start(early)
        if identity.is_executor:
            arrival = self._arrivals.pop(name, None)
            if arrival is not None:
                arrival.set()

    def wait_for_executor(self, environment_id: str, registration_id: str, seconds: float) -> bool:
        """See `registry.Presence`."""
        if not self._is_here(environment_id, registration_id) and not self.draining:
            arrival = self._arrivals.setdefault(environment_id, Event())
            with at_most(seconds):
                arrival.wait()
        return self._is_here(environment_id, registration_id)

    def registered(self, registration: Registration, outcome: Outcome) -> None:
        """See `registry.Presence`."""
        environment = self._environments.get(registration.environment_id)
        if environment is None:
            return
        if outcome is Outcome.TAKEN_OVER:
            environment.reset_all(RESET_TAKEN_OVER, forget=True)
        if environment.executor is not None:
            text = "another executor" if outcome is Outcome.TAKEN_OVER else "a new registration"
            why = "taken_over" if outcome is Outcome.TAKEN_OVER else "replaced"
            environment.executor.close(POLICY_VIOLATION, f"{text} has taken over this environment", why)
        environment.settle()

    def end_revoked(self) -> None:
        """End what was opened with tokens that are no more."""
        for link in self._links():
            if not self._book.holds(link.identity.token_id):
                link.close(POLICY_VIOLATION, "the token was revoked", "revoked")

    def say_goodbye(self) -> None:
        """Tell everybody to come again later."""
        for link in self._links():
            link.close(GOING_AWAY, "the relay is shutting down", "drained")

    def end(self) -> None:
        """Release everything."""
        for link in self._links():
            link.give_up("drained")

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Return what is held just now, for the metrics page."""
        environments = self._environments.values()
        return {
            "environments": ("Environments with somebody in them", len(environments)),
            "executors": ("Executors connected", sum(each.executor is not None for each in environments)),
            "harnesses": ("Harnesses connected", sum(len(each.harnesses) for each in environments)),
            "streams": (
                "Streams, also detached ones",
                sum(len(each.routes) for each in environments),
            ),
            "draining": ("1 while the relay shuts down", float(self.draining)),
        }

    def count_links(self) -> int:
        """Return how many websockets are connected."""
        return sum(len(each.links) for each in self._environments.values())

    def count_sockets(self) -> int:
        """Return how many sockets are open, those that say goodbye included."""
        return self.count_links() + len(self._shared.goodbyes)

    def count_sockets_of(self, token_id: str) -> int:
        """Return how many of these were opened with one token."""
        return self._shared.sockets_of[token_id]

    def _identity(self, registration: Registration, digest: bytes) -> Identity | None:
        name, registration_id = registration.environment_id, registration.registration_id
        if hmac.compare_digest(registration.ticket, digest):
            return Identity(True, name, registration_id, registration.fingerprint, registration.token_id)
        grant = self._state.grant_for_ticket(digest, self._now())
        if grant is None or (grant.environment_id, grant.registration_id) != (name, registration_id):
            return None
        return Identity(False, name, registration_id, grant.fingerprint, grant.token_id)

    def _is_here(self, environment_id: str, registration_id: str) -> bool:
        environment = self._environments.get(environment_id)
        executor = environment.executor if environment else None
        return executor is not None and executor.identity.registration_id == registration_id

    def _links(self) -> list[Link]:
        return [link for each in self._environments.values() for link in each.links]

    def _expire(self, route: Route) -> None:
        route.environment.forget(route)
        route.environment.settle()

    def _forget(self, environment: Environment) -> None:
        if self._environments.get(environment.name) is environment:
            del self._environments[environment.name]
