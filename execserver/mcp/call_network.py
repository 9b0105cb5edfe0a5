"""The network of one call, where the machine has rules for it: a proxy, questions, and what was refused.

The shell gets a network of its own with nothing but the proxy in it.  The user is asked once for each host
and port of a call, about one at a time; the answer holds for the call.  After `MOST_ASKED` questions of a
call further hosts are refused.
"""

from __future__ import annotations

from collections.abc import Callable

from gevent.lock import BoundedSemaphore

from execserver.egress.decisions import (
    BY_CLIENT,
    NOT_ALLOWED,
    Action,
    DecisionRecord,
    Question,
    Source,
    Verdict,
)
from execserver.egress.machine_rules import MachineRules, Refusals, word_of
from execserver.egress.policy import EgressPolicy
from execserver.mcp.elicitation import Answer, Ask, HostQuestion
from execserver.sandbox.proxy.routes import HTTP_PORT, SOCKS_PORT
from execserver.services.egress.proxy import EgressProxy
from execserver.services.egress.service import EgressService
from execserver.services.launch.passed_listeners import PassedListeners
from execserver.services.launch.spawner import SpawnSpec

MOST_ASKED = 256

_NO = Verdict(Action.DENY, NOT_ALLOWED, Source.DECIDER)


class _Decider:
    """Asks the user and notes what was refused; knows nothing of the proxy, which refers to it."""

    def __init__(self, ask: Ask) -> None:
        self.pause: Callable[[], None] = _nothing
        self.resume: Callable[[], None] = _nothing
        self.note = ""
        self._ask = ask
        self._asking = BoundedSemaphore(1)
        self._answers: dict[tuple[str, int, str], Verdict] = {}
        self._refusals = Refusals()

    def decided(self, record: DecisionRecord) -> None:
        """Note a refusal."""
        line = self._refusals.line(record)
        if line:
            self.note += f"{line}\n"

    def asked(self, question: Question) -> Verdict:
        """Return the user's answer about a host; wait for it."""
        key = (question.host, question.port, word_of(question.protocol))
        with self._asking:
            if key not in self._answers:
                if len(self._answers) >= MOST_ASKED:
                    return _NO
                self.pause()
                try:
                    answer = self._ask(HostQuestion(*key))
                finally:
                    self.resume()
                self._answers[key] = BY_CLIENT if answer is Answer.ACCEPT else _NO
            return self._answers[key]


class CallNetwork:
    """Made before the shell, for its environment and its start; `close` ends it.  Raises OSError."""

    def __init__(self, service: EgressService, rules: MachineRules, ask: Ask) -> None:
        self._decider = decider = _Decider(ask)
        self._passed = PassedListeners()
        policy = EgressPolicy((), machine=rules)
        self._proxy = EgressProxy(policy, service, decider.decided, decider.asked)
        self._proxy.expect(HTTP_PORT, SOCKS_PORT)

    def lead(self, spec: SpawnSpec) -> SpawnSpec:
        """Return the start of a shell with the variables and the descriptor that lead to the proxy."""
        return spec._replace(env={**dict(spec.env), **self._proxy.environment}, listeners_fd=self._passed.fd)

    def begin(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        """Serve the shell, which runs; `pause` and `resume` are called around each question."""
        self._decider.pause, self._decider.resume = pause, resume
        listeners = self._passed.take()
        http = listeners.pop(HTTP_PORT, None)
        if http is not None:
            self._proxy.listen_on(http, listeners.get(SOCKS_PORT))
            self._proxy.start()

    @property
    def note(self) -> str:
        """What the result says about the network, "" if nothing was refused."""
        return self._decider.note

    def close(self) -> None:
        """End all connections."""
        self._proxy.close()
        self._passed.close()
        self._decider.pause = self._decider.resume = _nothing  # they refer to the call


def _nothing() -> None:
    """Do nothing, in place of a callback, since the call is over."""
