"""The rendezvous: which credential lets whom in, and the environments that are in use."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable

from gevent.event import Event

from execserver.eventloop.deadline import at_most
from execserver.eventloop.delay_queue import DelayQueue
from execserver.relay.byte_streams import ByteStream
from execserver.relay.identity import Identity
from execserver.relay.limits import Limits
from execserver.relay.links import Shared, WebSocketLink
from execserver.relay.metrics import Metrics
from execserver.relay.routes import RESET_TAKEN_OVER, Environment, Route
from execserver.relay.state import Outcome, Registration, RelayState
from execserver.relay.tokens import TokenBook, digest_of
from execserver.wire.close_codes import GOING_AWAY, POLICY_VIOLATION

_log = logging.getLogger(__name__)

_UNAUTHORIZED, _TOO_MANY, _UNAVAILABLE = 401, 429, 503


class NotAdmitted(Exception):
    """A WebSocket is refused: the HTTP status, and the reason as the newer reference names it in a header."""

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
        """Return whose credential it is.  Raises `NotAdmitted`, whose text does not repeat the credential."""
        if self.draining:
            raise NotAdmitted(_UNAVAILABLE, "pod_draining", "this relay is shutting down")
        digest = digest_of(ticket)
        registration = self._state.registration(environment_id)
        if registration is None:
            raise NotAdmitted(_UNAUTHORIZED, "unknown_route", "no executor has registered this environment")
        # With a revoked token, the URLs that were got with it are void, too.
        identity = self._identity(registration, digest)
        if identity is None or not self._book.holds(identity.token_id):
            raise NotAdmitted(_UNAUTHORIZED, "expired", "this URL is not valid, or not any more")
        environment = self._environments.get(environment_id)
        if not identity.is_executor and environment and len(environment.harnesses) >= self._limits.harnesses:
            raise NotAdmitted(_TOO_MANY, "too_many_harnesses", "too many harnesses are connected")
        return identity

    def attach(self, identity: Identity, stream: ByteStream, peer: str, early: bytes) -> None:
        """Take over an upgraded socket; `early` holds bytes that came with the upgrade."""
        name = identity.environment_id
        environment = self._environments.get(name)
        if environment is None:
            environment = Environment(name, self._shared, self._graces, self._metrics, self._forget)
            self._environments[name] = environment
        link = WebSocketLink(stream, peer, identity, environment, self._shared)
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
        # Streams of the former executor cannot go on: only the two ends of their handshake have the keys.
        if outcome is Outcome.TAKEN_OVER:
            environment.reset_all(RESET_TAKEN_OVER, forget=True)
        if environment.executor is not None:
            text = "another executor" if outcome is Outcome.TAKEN_OVER else "a new registration"
            why = "taken_over" if outcome is Outcome.TAKEN_OVER else "replaced"
            environment.executor.close(POLICY_VIOLATION, f"{text} has taken over this environment", why)
        environment.settle()

    def end_revoked(self) -> None:
        """Close all links that were opened with a token that has been revoked."""
        for link in self._links():
            if not self._book.holds(link.identity.token_id):
                link.close(POLICY_VIOLATION, "the token was revoked", "revoked")

    def send_shutdown_notice(self) -> None:
        """Send every peer the shutdown notice (close code 1001)."""
        for link in self._links():
            link.close(GOING_AWAY, "the relay is shutting down", "drained")

    def end(self) -> None:
        """End all links at once."""
        for link in self._links():
            link.give_up("drained")

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Return what is connected at the moment, for the metrics page: name -> help text and value."""
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

    def count_sockets(self) -> int:
        """Return the number of open sockets, those in their close handshake included."""
        return self._shared.open_sockets.count

    def knows_token(self, token_id: str) -> bool:
        """Tell whether a token is still in the token file."""
        return self._book.holds(token_id)

    def count_sockets_of(self, token_id: str) -> int:
        """Return how many of these were opened with one token, by its id."""
        return self._shared.open_sockets.count_of(token_id)

    def _identity(self, registration: Registration, digest: bytes) -> Identity | None:
        name, registration_id = registration.environment_id, registration.registration_id
        if hmac.compare_digest(registration.ticket, digest):
            return Identity(True, name, registration_id, registration.fingerprint, registration.token_id)
        # A grant is for one registration: after a new one, the harness has to ask again.
        grant = self._state.grant_for_ticket(digest, self._now())
        if grant is None or (grant.environment_id, grant.registration_id) != (name, registration_id):
            return None
        return Identity(False, name, registration_id, grant.fingerprint, grant.token_id)

    def _is_here(self, environment_id: str, registration_id: str) -> bool:
        environment = self._environments.get(environment_id)
        executor = environment.executor if environment else None
        return executor is not None and executor.identity.registration_id == registration_id

    def _links(self) -> list[WebSocketLink]:
        return [link for each in self._environments.values() for link in each.links]

    def _expire(self, route: Route) -> None:
        route.environment.forget(route)
        route.environment.settle()

    def _forget(self, environment: Environment) -> None:
        if self._environments.get(environment.name) is environment:
            del self._environments[environment.name]
