"""From a question to an open connection: the rules, the client, the names, and again the addresses.

A name is looked up when it is judged and again when it is connected to, and the connection goes to exactly
the addresses that were judged then: a name server that answers otherwise the second time gains nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import gevent
from gevent import socket
from gevent.lock import BoundedSemaphore

from execserver.egress.addresses import Address, literal
from execserver.egress.decisions import (
    ALLOW,
    NOT_ALLOWED,
    REBOUND,
    DecisionRecord,
    Protocol,
    Question,
    Verdict,
)
from execserver.egress.http_requests import Heads
from execserver.egress.name_pace import NamePace
from execserver.egress.remembering import remember
from execserver.eventloop import ends
from execserver.eventloop.ends import End, complete, connected, of_gevent
from execserver.http_client.connect import connect_to
from execserver.http_client.proxy import Proxy, UnsupportedProxy

if TYPE_CHECKING:
    from execserver.egress.policy import EgressPolicy
    from execserver.http_client.connect import Address as Place
    from execserver.services.egress.masked import Masked
    from execserver.services.egress.service import EgressService

_log = logging.getLogger(__name__)

LOOKUP_S = 10.0
CONNECT_S = 30.0
MAX_LOOK_UPS = 4  # of one process at a time
_SCHEMES = {Protocol.HTTP: "http", Protocol.HTTPS_CONNECT: "https"}

Tell = Callable[[DecisionRecord], None]
Ask = Callable[[Question], Verdict]


class Refused(Exception):
    """The addresses of an allowed host are not allowed."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


class Way(NamedTuple):
    """An open connection, which the caller owns: to the host, or to an upstream proxy that leads there."""

    sock: End
    proxy: Proxy | None
    places: list[Place]  # where the host was then


class _Found(NamedTuple):
    """Where a host is, and what is decided about these addresses."""

    places: list[Place]
    addresses: list[Address]
    verdict: Verdict


class Judge:
    """Decides for one process, and tells of each decision.  `ask` is None if no client wants to be asked."""

    def __init__(self, policy: EgressPolicy, service: EgressService, tell: Tell, ask: Ask | None) -> None:
        self.policy = policy
        self.masked: Masked | None = None  # the credentials of the process, where they are masked
        self._service = service
        self._tell = tell
        self._ask = ask
        self._pace = NamePace()
        self._look_ups = BoundedSemaphore(MAX_LOOK_UPS)
        # By question: where a literal address leads never changes, nor does the policy.
        self._literals: dict[object, _Found] = {}
        self.heads = Heads()

    def tell(self, verdict: Verdict, question: Question, method: str | None, client: str) -> None:
        """Tell of a decision."""
        self._tell(DecisionRecord(verdict, question, method, client))

    def admit(
        self, question: Question, method: str | None, client: str, answer: Callable[[], None] = lambda: None
    ) -> Verdict:
        """Decide about a connection; waits for a client's answer, and for a name server.

        One that is admitted gets its `answer` before that is told of, so that it waits no longer.
        """
        verdict = self.policy.judge(question)
        if verdict.reason == NOT_ALLOWED and not (verdict.allows or verdict.note) and self._ask is not None:
            verdict = self._ask(question)
        if verdict.allows:
            by_answers = self._by_answers(question)
            verdict = verdict if by_answers.allows else by_answers
        by_mode = self.policy.judge_mode(question, method) if verdict.allows else verdict
        try:
            if by_mode.allows:
                answer()
        finally:
            self.tell(verdict, question, method, client)
        if verdict.allows and not by_mode.allows:
            self.tell(by_mode, question, method, client)
            return by_mode
        return verdict

    def begin(self, question: Question) -> End | None:
        """Begin to connect to an admitted host, so that it takes no time later, where nothing is to be asked.

        `connect` takes what this returns, and judges all the same; None where it has to begin itself.
        """
        found = self._literals.get(question.key)
        if found is None or self.masked is not None or self._is_refused(question, found):
            return None
        try:
            if self._upstream(question, found.addresses) is not None:
                return None
            return ends.begun(*found.places[0])
        except OSError:
            return None

    def connect(
        self,
        question: Question,
        method: str | None,
        client: str,
        *,
        kept: Way | None = None,
        begun: End | None = None,
    ) -> Way:
        """Connect to an admitted host.  Raises Refused and OSError.

        Returns the way there that was `kept` if the host is still there.  What `begin` returned is taken
        over, and closed if this fails.
        """
        try:
            found = self._find(question)
            if self._is_refused(question, found):
                self.tell(REBOUND, question, method, client)
                raise Refused(REBOUND)
            proxy = self._upstream(question, found.addresses)
        except BaseException:
            if begun is not None:
                begun.close()
            raise
        places = found.places
        if begun is not None:
            return Way(complete(begun, places[0][1], CONNECT_S), proxy, places)
        if proxy is not None:
            places = self._service.connector.addresses(proxy.host, proxy.port)
        elif kept is not None and kept.places == places:
            return kept
        if len(places) == 1:
            return Way(connected(*places[0], CONNECT_S), proxy, places)
        with gevent.Timeout(CONNECT_S, TimeoutError(110, "timed out")):
            return Way(of_gevent(connect_to(places)), proxy, places)

    def _is_refused(self, question: Question, found: _Found) -> bool:
        is_own = self._service.own_ports.leads_to_us(found.addresses, question.port)
        return is_own or not found.verdict.allows

    def _by_answers(self, question: Question) -> Verdict:
        if self.policy.allow_local_binding and self.policy.machine is None:
            return ALLOW  # everything follows the patterns then
        try:
            return self._find(question).verdict
        except OSError:
            return self.policy.judge_answers(question, [])

    def _find(self, question: Question) -> _Found:
        """Find a host, and judge where it is.  Raises OSError."""
        found = self._literals.get(question.key)
        if found is None:
            places = self._places(question)
            addresses = [_address(place) for place in places]
            found = _Found(places, addresses, self.policy.judge_answers(question, addresses))
            if literal(question.host) is not None:
                remember(self._literals, question.key, found)
        return found

    def _upstream(self, question: Question, addresses: list[Address]) -> Proxy | None:
        """Return the proxy that a connection goes through.  Raises OSError for one of an unknown kind."""
        if not self.policy.upstream:
            return None
        scheme = _SCHEMES.get(question.protocol)
        if scheme is None or any(address.is_loopback for address in addresses):
            return None
        is_private = not all(address.is_public for address in addresses)
        if is_private and not self._service.settings.proxy_private_ips_via_upstream:
            return None
        try:
            return self._service.upstream.by_scheme(scheme)
        except UnsupportedProxy as error:
            _log.warning("a process cannot reach %s: %s", question.host, error)
            raise OSError(str(error)) from None

    def _places(self, question: Question) -> list[Place]:
        """Return where a host is.  Raises OSError."""
        address = literal(question.host)
        if address is not None:
            family = socket.AF_INET if len(address.packed) == 4 else socket.AF_INET6
            return [(family, (address.text, question.port))]
        delay = self._pace.delay(question.host, time.monotonic())
        if delay:
            _log.warning("a process looks up many names: %s waits %.1f s", question.host, delay)
            gevent.sleep(min(delay, LOOKUP_S))
        with gevent.Timeout(LOOKUP_S, TimeoutError(110, "the name server does not answer")):
            return self._looked_up(question)

    def _looked_up(self, question: Question) -> list[Place]:
        """Ask the name server.  One that does not answer holds up this process, and no other one.

        Who gives up waiting leaves the question open, and with it one of the process's places.
        """
        self._look_ups.acquire()
        asked = gevent.Greenlet.spawn(_addresses, self._service, question)
        release = self._look_ups.release
        asked.link(lambda _: release())
        found = asked.get()
        if isinstance(found, OSError):
            raise found
        return found


def _addresses(service: EgressService, question: Question) -> list[Place] | OSError:
    """Return an error, since gevent prints what a greenlet raises."""
    try:
        return service.connector.addresses(question.host, question.port)
    except OSError as error:
        return error


@lru_cache(maxsize=256)
def _address(place: Place) -> Address:
    family, (host, *_) = place
    return Address(socket.inet_pton(family, host.partition("%")[0]))
