"""This relay as one node of a cluster: its lease, what it hears, and where executors are.

A node that cannot renew its lease goes on with what is joined here and takes nobody new, since the engine
would have to be asked.  It renews only while it also hears its messages: a node that is deaf is not alive to
the others.  After each gap, of the connection or of the lease, it asks about every executor and token again.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from typing import Protocol

from gevent import Greenlet, sleep, spawn
from gevent.event import Event

from execserver.eventloop.delay_queue import DelayQueue
from execserver.relay.cluster import pacing
from execserver.relay.cluster.leases import Leases, OwnLease, Phase
from execserver.relay.cluster.messages import Recall, decode
from execserver.relay.cluster.placing import Entry, Place, judge, place_of
from execserver.relay.cluster.presence import NodeRecord, NodeState
from execserver.relay.cluster.residents import End, Order, Residents
from execserver.relay.cluster.telling import Telling
from execserver.relay.engine import steps
from execserver.relay.engine.client import Engine
from execserver.relay.engine.line import Dialer
from execserver.relay.engine.subscription import Subscription
from execserver.relay.engine.tokens import CHANNEL as TOKENS
from execserver.relay.errors import CannotServe
from execserver.relay.limits import Limits
from execserver.relay.registry import Found, Whereabouts
from execserver.relay.rendezvous import Rendezvous

_log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 1.0  # a call that waits for an executor looks so often, even if it hears nothing
_COUNT_EVERY = 5  # beats: counting looks at each environment
_STEP_S = 0.1  # of a drain
_LAST_WORDS_S = 0.5
_READY_S = 5.0
_COMPLAIN_S = 60.0  # one line of the log for any number of lines that are no messages


class Clock(Protocol):
    """The clock that is set by the engine's."""

    ahead: float


class ClusterNode:
    """See `rendezvous.Placement`."""

    def __init__(
        self,
        name: str,
        url: str,
        engine: Engine,
        dialer: Dialer,
        clock: Clock,
        rendezvous: Rendezvous,
        limits: Limits,
    ) -> None:
        """`url` leads to this very node, if it is not empty."""
        self.name = name
        self._url = url
        self._engine = engine
        self._rendezvous = rendezvous
        self._limits = limits
        self.on_name_lost: Callable[[], None] = lambda: None  # another process has this node's name
        self._clock = clock
        epoch = secrets.token_hex(8)
        self._record = NodeRecord(epoch, NodeState.UP, url=url)
        self._residents = Residents(name, epoch)
        self._telling = Telling(engine, self._residents, self._obey)
        self._subscription = Subscription(dialer, (f"node:{name}", TOKENS), self._heard, self.look_again)
        # Else messages could be awaited from one primary and sent to another.  Then all is looked at again.
        engine.on_connected = self._subscription.connect_again
        self._lease = OwnLease(limits.lease_s, limits.isolation_s, limits.grace_s, time.monotonic())
        self._leases = Leases(limits.lease_s)
        self._names: tuple[str, ...] = ()
        self._beats = 0
        self._away: DelayQueue[str] = DelayQueue(limits.away_s, self._stayed_away)
        self._complains_again = 0.0
        self._tokens_due = Event()
        self._greenlets: list[Greenlet[[], None]] = []

    def start(self) -> None:
        """Take the node's name and begin to listen.  Raises CannotServe."""
        self._engine.start()
        self._subscription.start()
        if not self._subscription.is_ready.wait(_READY_S):
            raise CannotServe("the engine passes no messages on to this node")
        self._take_name()
        self._telling.start()
        self._greenlets = [spawn(self._keep_beating), spawn(self._look_at_tokens)]

    def close(self) -> None:
        """Tell the engine that nobody is here any more, and leave it."""
        for greenlet in self._greenlets:
            greenlet.kill(block=False)
        self._telling.close(_LAST_WORDS_S)
        try:
            steps.end_lease(self._engine, self.name, self._record.epoch)
        except CannotServe:
            pass  # it ends by itself
        self._away.close()
        self._subscription.close()
        self._engine.close()

    def look_again(self) -> None:
        """Ask the engine about all executors and tokens here: something may have been missed."""
        self._residents.all_again()
        self._telling.wake()
        self._tokens_due.set()

    def drain(self, seconds: float, hurry: Event) -> None:
        """Send everybody to other nodes, one environment after the other, within some seconds."""
        ends = time.monotonic() + seconds
        # First the balancers have to notice (`/lb`), or executors would come straight back.
        if hurry.wait(min(self._limits.balancer_s, seconds / 2)):
            return
        self._rendezvous.draining = True
        self._record = self._record._replace(state=NodeState.DRAINING)
        self._beat()
        while names := self._rendezvous.environment_ids():
            count = pacing.of_drain(len(names), ends - time.monotonic(), _STEP_S)
            for name in names[:count]:
                self._rendezvous.send_away(name, "this relay is shutting down", "drained")
            if hurry.wait(_STEP_S):
                return

    # What the rendezvous tells and asks.

    @property
    def takes_new(self) -> bool:
        """See `rendezvous.Placement`."""
        return self._lease.phase(time.monotonic()) < Phase.ISOLATED

    def arrived(self, environment_id: str, registration_id: str) -> None:
        """See `rendezvous.Placement`."""
        self._residents.arrived(environment_id, registration_id)
        self._away.discard(environment_id)
        self._telling.wake()

    def left(self, environment_id: str) -> None:
        """See `rendezvous.Placement`."""
        self._residents.left(environment_id)
        self._away.add(environment_id)
        self._telling.wake()

    def find_executor(self, environment_id: str, seconds: float) -> Found:
        """See `registry.Presence`.  Raises CannotServe."""
        registration, presence = steps.whereabouts(self._engine, environment_id)
        if registration is None:
            return Found()
        registration_id = registration.registration_id
        place = place_of(presence, registration_id, self._leases, time.monotonic())
        if place is None or place.is_leaving:
            place = self._await_executor(environment_id, registration_id, time.monotonic() + seconds)
        return Found(registration, place and Whereabouts(place.presence.node, place.record.url))

    def astray(self, environment_id: str, registration_id: str, hint: str | None) -> None:
        """See `rendezvous.Placement`.  Raises CannotServe."""
        place = self._place(environment_id, registration_id)
        if place is not None and judge(False, place, self.name, hint) is Entry.RECALL:
            self._recall(environment_id, place)

    def gauges(self) -> dict[str, tuple[str, float]]:
        """See `rendezvous.Placement`."""
        now = time.monotonic()
        phase = self._lease.phase(now)
        return {
            "engine_up": ("1 while the shared engine is connected", float(self._engine.is_connected)),
            "engine_waiting": ("Calls that wait for the engine", float(self._engine.waiting)),
            "lease_seconds": ("Until others stop counting on this node", max(0.0, self._lease.ends() - now)),
            "isolated": (
                "1 while this node has been without a lease for long",
                float(phase >= Phase.ISOLATED),
            ),
            "nodes": ("Nodes that are alive, as far as this one knows", float(self._leases.count(now))),
        }

    def _await_executor(self, environment_id: str, registration_id: str, ends: float) -> Place | None:
        recalled = False
        with self._subscription.listening(f"arr:{environment_id}") as arrivals:
            arrivals.is_open.wait(_LOOK_AGAIN_S)
            while True:
                news = arrivals.news  # before looking, so that what comes in between is not missed
                place = self._place(environment_id, registration_id)
                if place is not None and not place.is_leaving:
                    return place
                if place is not None and not recalled:  # it waits for nothing but its turn
                    self._recall(environment_id, place)
                    recalled = True
                left = ends - time.monotonic()
                if left <= 0:
                    return None
                news.wait(min(left, _LOOK_AGAIN_S))

    def _place(self, environment_id: str, registration_id: str) -> Place | None:
        presence = steps.presence(self._engine, environment_id)
        return place_of(presence, registration_id, self._leases, time.monotonic())

    def _recall(self, environment_id: str, place: Place) -> None:
        steps.send(self._engine, place.presence.node, Recall(environment_id, place.presence))

    # What the engine tells.

    def _heard(self, channel: str, line: str) -> None:
        if channel == TOKENS:
            self._rendezvous.end_links_of(line)
            return
        message = decode(line)
        if message is None:
            self._complain(line)
            return
        order = self._residents.heard(message, time.monotonic())
        if order is not None:
            self._obey(order)

    def _complain(self, line: str) -> None:
        now = time.monotonic()
        if now >= self._complains_again:
            self._complains_again = now + _COMPLAIN_S
            _log.warning("not a message: %.100r", line)

    def _obey(self, order: Order) -> None:
        name, end = order
        _log.info("by order of the cluster: environment=%s end=%s", name, end.value.replace(" ", "-"))
        if end is End.EVERYBODY:
            self._rendezvous.send_away(name, "the executor is at another node", "moved")
        elif end is End.EXECUTOR:
            self._rendezvous.send_away(name, "connect once more", "recalled", executor_only=True)
        else:
            self._rendezvous.replace_executor(name, taken_over=end is End.TAKEN_OVER)

    def _stayed_away(self, environment_id: str) -> None:
        if self._residents.presence(environment_id) is None:
            self._rendezvous.send_away(environment_id, "the executor is not at this node", "moved")

    # The lease.

    def _take_name(self) -> None:
        # The node of this name that ended without a word keeps it until its lease is over.
        deadline = time.monotonic() + 2 * self._limits.lease_s
        while self._beat() == "taken":
            if time.monotonic() > deadline:
                raise CannotServe(
                    f"another relay is running as node {self.name}; give each one a --node of its own"
                )
            sleep(_STEP_S)
        self._beat()  # now the other nodes' names are known

    def _keep_beating(self) -> None:
        while True:
            begun = time.monotonic()
            if self._beat() == "taken":
                _log.error("another relay has taken the name of this node, %s", self.name)
                self.on_name_lost()
                return
            self._mind_phase()
            sleep(max(0.0, begun + self._limits.beat_s - time.monotonic()))

    def _beat(self) -> str | None:
        """Renew the lease; return how it was held before, or None if it is not renewed."""
        if not self._subscription.is_ready.is_set():
            return None
        if self._beats % _COUNT_EVERY == 0:
            self._count()
        sent = time.monotonic()
        try:
            found = steps.beat(self._engine, self.name, self._record, self._limits.lease_s, self._names)
        except CannotServe:
            return None
        self._names = found.names
        self._leases.saw(found.nodes, sent)
        if found.held != "taken":
            self._clock.ahead = found.time - time.time()
            self._lease.renewed(sent)
            self._beats += 1
        if found.held == "new" and self._beats > 1:
            _log.warning("this node was not counted on for a while; asking about everybody here")
            self.look_again()
        return found.held

    def _count(self) -> None:
        executors, harnesses, streams = self._rendezvous.counts()
        self._record = self._record._replace(executors=executors, harnesses=harnesses, streams=streams)

    def _mind_phase(self) -> None:
        phase = self._lease.phase(time.monotonic())
        if phase is Phase.OVER:
            for name in self._rendezvous.environment_ids():
                self._rendezvous.send_away(name, "this relay is without its engine", "isolated")
        elif phase is Phase.ISOLATED:
            idle = self._rendezvous.idle_executors()
            for name in idle[: pacing.of_idle(len(idle), self._limits.beat_s)]:
                self._rendezvous.send_away(name, "this relay is without its engine", "isolated")

    def _look_at_tokens(self) -> None:
        while True:
            self._tokens_due.wait()
            self._tokens_due.clear()
            try:
                self._rendezvous.end_revoked()
            except CannotServe:
                pass  # the next connection to the engine asks for it again
