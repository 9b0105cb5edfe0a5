"""The rendezvous: which credential lets whom in, and the environments that are in use."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from gevent.event import Event

from execserver.eventloop.deadline import at_most
from execserver.eventloop.delay_queue import DelayQueue
from execserver.relay.byte_streams import ByteStream, is_plain
from execserver.relay.errors import CannotServe
from execserver.relay.identity import Identity
from execserver.relay.limits import Limits
from execserver.relay.link_context import Shared
from execserver.relay.links import WebSocketLink
from execserver.relay.metrics import Metrics
from execserver.relay.registry import Found, Whereabouts
from execserver.relay.routes import RESET_TAKEN_OVER, Environment, Route
from execserver.relay.state import Grant, Outcome, Registration, RelayState
from execserver.relay.tokens import Tokens, digest_of
from execserver.wire.close_codes import GOING_AWAY, POLICY_VIOLATION

if TYPE_CHECKING:
    from execserver.handover.carrier import Incoming, Outgoing
    from execserver.handover.relay_records import PackedRendezvous

_log = logging.getLogger(__name__)

_UNAUTHORIZED, _TOO_MANY, _UNAVAILABLE = 401, 429, 503


class NotAdmitted(Exception):
    """A WebSocket is refused: the HTTP status, and the reason as the newer reference names it in a header."""

    def __init__(self, status: int, reason: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason


class Placement(Protocol):
    """The other nodes of a cluster; `cluster.node` implements it."""

    def arrived(self, environment_id: str, registration_id: str) -> None:
        """Note that an executor connected here; must not block."""

    def left(self, environment_id: str) -> None:
        """Note that its WebSocket is gone; must not block."""

    def find_executor(self, environment_id: str, seconds: float) -> Found:
        """See `registry.Presence`."""

    @property
    def takes_new(self) -> bool:
        """True unless this node has been without the engine for long."""

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Return what is known of the cluster, for the metrics page."""

    def astray(self, environment_id: str, registration_id: str, hint: str | None) -> None:
        """Note that a harness with a valid credential came here, where its executor is not."""


class Rendezvous:
    """All environments; the `Presence` that the registry asks, and the `Home` of the environments."""

    def __init__(
        self,
        state: RelayState,
        tokens: Tokens,
        limits: Limits,
        metrics: Metrics,
        now: Callable[[], float],
        tcp_timeout_s: float,
    ) -> None:
        self._state = state
        self._tokens = tokens
        self._limits = limits
        self._metrics = metrics
        self._now = now
        self._shared = Shared(limits, tcp_timeout_s)
        self._graces: DelayQueue[Route] = DelayQueue(limits.resume_grace_s, self._expire)
        self._environments: dict[str, Environment] = {}
        self._arrivals: dict[str, Event] = {}
        self.placement: Placement | None = None
        self.is_leaving = False  # told to end, which balancers have to notice first
        self.draining = False  # takes nobody any more

    def admit(self, environment_id: str, ticket: str, hint: str | None = None) -> Identity:
        """Return whose credential it is; `hint` is the node that the URL names.

        Raises `NotAdmitted`, whose text does not repeat the credential.
        """
        if self.draining:
            raise NotAdmitted(_UNAVAILABLE, "pod_draining", "this relay is shutting down")
        digest = digest_of(ticket)
        grant, registration = self._state.grant_for_ticket(environment_id, digest, self._now())
        if registration is None:
            raise NotAdmitted(_UNAUTHORIZED, "unknown_route", "no executor has registered this environment")
        # With a revoked token, the URLs that were got with it are void, too.
        identity = _identity(registration, digest, grant)
        if identity is None or not self._tokens.holds(identity.token_id):
            raise NotAdmitted(_UNAUTHORIZED, "expired", "this URL is not valid, or not any more")
        environment = self._environments.get(environment_id)
        if self.placement is not None and not identity.is_executor:
            self._refuse_astray(self.placement, identity, hint)
        if not identity.is_executor and environment and len(environment.harnesses) >= self._limits.harnesses:
            raise NotAdmitted(_TOO_MANY, "too_many_harnesses", "too many harnesses are connected")
        return identity

    def attach(self, identity: Identity, stream: ByteStream, peer: str, early: bytes) -> None:
        """Take over an upgraded socket; `early` holds bytes that came with the upgrade."""
        name = identity.environment_id
        environment = self._environments.get(name)
        if environment is None:
            environment = self._environments[name] = self._empty(name)
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
            if self.placement is not None and link.is_open:
                self.placement.arrived(name, identity.registration_id)
        self._end_if_revoked(link)

    def find_executor(self, environment_id: str, seconds: float) -> Found:
        """See `registry.Presence`."""
        if self.placement is not None:
            return self.placement.find_executor(environment_id, seconds)
        registration = self._state.registration(environment_id)
        if registration is None:
            return Found()
        registration_id = registration.registration_id
        if not self.is_here(environment_id, registration_id) and not self.draining:
            arrival = self._arrivals.setdefault(environment_id, Event())
            with at_most(seconds):
                arrival.wait()
        return Found(registration, Whereabouts() if self.is_here(environment_id, registration_id) else None)

    def registered(self, registration: Registration, outcome: Outcome) -> None:
        """See `registry.Presence`."""
        self.replace_executor(registration.environment_id, taken_over=outcome is Outcome.TAKEN_OVER)

    def replace_executor(self, environment_id: str, *, taken_over: bool) -> None:
        """End the executor of a registration that is replaced, by one with another key if `taken_over`."""
        environment = self._environments.get(environment_id)
        if environment is None:
            return
        # Streams of the former executor cannot go on: only the two ends of their handshake have the keys.
        if taken_over:
            environment.reset_all(RESET_TAKEN_OVER, forget=True)
        if environment.executor is not None:
            text = "another executor" if taken_over else "a new registration"
            why = "taken_over" if taken_over else "replaced"
            environment.executor.close(POLICY_VIOLATION, f"{text} has taken over this environment", why)
        environment.settle()

    def end_revoked(self) -> None:
        """Close all links that were opened with a token that has been revoked.  Raises CannotServe."""
        links = self._links()
        for token_id in self._tokens.revoked({link.identity.token_id for link in links}):
            self.end_links_of(token_id)

    def end_links_of(self, token_id: str) -> None:
        """Close all links that were opened with a token, which was revoked."""
        if self._shared.open_sockets.count_of(token_id):
            for link in self._links():
                if link.identity.token_id == token_id:
                    link.close(POLICY_VIOLATION, "the token was revoked", "revoked")

    def send_shutdown_notice(self) -> None:
        """Send every peer the shutdown notice (close code 1001)."""
        for name in self.environment_ids():
            self.send_away(name, "the relay is shutting down", "drained")

    def send_away(self, environment_id: str, text: str, why: str, *, executor_only: bool = False) -> None:
        """Have those of an environment connect again, elsewhere perhaps (close code 1001)."""
        environment = self._environments.get(environment_id)
        links = environment.links if environment is not None else []
        for link in links:
            if link.identity.is_executor or not executor_only:
                link.close(GOING_AWAY, text, why)

    def end_tls(self, text: str) -> None:
        """Have those with TLS connect again: they cannot be handed over (close code 1001)."""
        for link in self._links():
            if not is_plain(link.sock):
                link.close(GOING_AWAY, text, "upgraded")

    @property
    def has_tls(self) -> bool:
        """True while such a link is there, or in its close handshake."""
        closing = (link for link, _ in self._shared.shutdown_notices)
        return any(not is_plain(link.sock) for link in (*self._links(), *closing))

    def pack(self, out: Outgoing) -> PackedRendezvous:
        """Return what `restore` takes."""
        from execserver.relay.handed_over import pack  # late, as all of an upgrade

        return pack(self._environments.values(), self._shared, self._graces, out)

    def restore(self, packed: PackedRendezvous, incoming: Incoming) -> None:
        """Go on with what was packed; nothing else may run before this returns."""
        from execserver.relay.handed_over import Unpacking

        unpacking = Unpacking(packed, incoming, self._shared)
        for environment in unpacking.run(self._empty, self._graces):
            self._environments[environment.name] = environment
        unpacking.go_on()

    def end(self) -> None:
        """End all links at once."""
        for link in self._links():
            link.give_up("drained")

    @property
    def takes_new(self) -> bool:
        """True while a balancer may send new connections here."""
        return not self.is_leaving and (self.placement is None or self.placement.takes_new)

    def environment_ids(self) -> list[str]:
        """Return the environments in which somebody is connected, the oldest first."""
        return [each.name for each in self._environments.values() if each.executor or each.harnesses]

    def idle_executors(self) -> list[str]:
        """Return the environments that have an executor and neither harnesses nor streams."""
        return [
            each.name
            for each in self._environments.values()
            if each.executor is not None and not (each.harnesses or each.routes)
        ]

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Return what is connected at the moment, for the metrics page: name -> help text and value."""
        executors, harnesses, streams = self.counts()
        return {
            "environments": ("Environments with somebody in them", len(self._environments)),
            "executors": ("Executors connected", executors),
            "harnesses": ("Harnesses connected", harnesses),
            "streams": ("Streams, also detached ones", streams),
            "draining": ("1 while the relay shuts down", float(self.is_leaving)),
            **(self.placement.gauges() if self.placement is not None else {}),
        }

    def counts(self) -> tuple[int, int, int]:
        """Return how many executors, harnesses and streams there are."""
        environments = self._environments.values()
        return (
            sum(each.executor is not None for each in environments),
            sum(len(each.harnesses) for each in environments),
            sum(len(each.routes) for each in environments),
        )

    def executor_left(self, environment: Environment) -> None:
        """See `routes.Home`."""
        if self.placement is not None:
            self.placement.left(environment.name)

    def emptied(self, environment: Environment) -> None:
        """See `routes.Home`."""
        if self._environments.get(environment.name) is environment:
            del self._environments[environment.name]

    def count_sockets(self) -> int:
        """Return the number of open sockets, those in their close handshake included."""
        return self._shared.open_sockets.count

    def knows_token(self, token_id: str) -> bool:
        """Tell whether a token is still valid."""
        return self._tokens.holds(token_id)

    def count_sockets_of(self, token_id: str) -> int:
        """Return how many of these were opened with one token, by its id."""
        return self._shared.open_sockets.count_of(token_id)

    def is_here(self, environment_id: str, registration_id: str) -> bool:
        """Tell whether the executor of a registration is connected here."""
        environment = self._environments.get(environment_id)
        executor = environment.executor if environment else None
        return executor is not None and executor.identity.registration_id == registration_id

    def _empty(self, name: str) -> Environment:
        return Environment(name, self._shared, self._graces, self._metrics, self)

    def _links(self) -> list[WebSocketLink]:
        return [link for each in self._environments.values() for link in each.links]

    def _expire(self, route: Route) -> None:
        route.environment.forget(route)
        route.environment.settle()

    def _refuse_astray(self, placement: Placement, identity: Identity, hint: str | None) -> None:
        name, registration_id = identity.environment_id, identity.registration_id
        if not self.is_here(name, registration_id):
            placement.astray(name, registration_id, hint)
            raise NotAdmitted(_UNAUTHORIZED, "wrong_node", "the executor is not at this node; ask once more")

    def _end_if_revoked(self, link: WebSocketLink) -> None:
        # The token may have been revoked since it was asked about, when the link could not be found yet.
        try:
            is_valid = self._tokens.holds(link.identity.token_id)
        except CannotServe:
            return  # nothing is known; once the engine is back, everybody is asked about
        if not is_valid:
            link.close(POLICY_VIOLATION, "the token was revoked", "revoked")


def _identity(registration: Registration, digest: bytes, grant: Grant | None) -> Identity | None:
    name, registration_id = registration.environment_id, registration.registration_id
    if hmac.compare_digest(registration.ticket, digest):
        return Identity(True, name, registration_id, registration.fingerprint, registration.token_id)
    # A grant is for one registration: after a new one, the harness has to ask again.
    if grant is None or grant.registration_id != registration_id:
        return None
    return Identity(False, name, registration_id, grant.fingerprint, grant.token_id)
