"""The network of one call, where the machine has rules for it: a proxy, questions, and what was refused.

The shell gets a network of its own with nothing but the proxy in it.  The user is asked once for each host
and port of a call, about one at a time; the answer holds for the call.
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
from execserver.egress.machine_rules import MachineRules, smallest_rule, word_of
from execserver.egress.policy import EgressPolicy
from execserver.mcp.elicitation import Answer, Ask, HostQuestion
from execserver.services.egress.proxy import EgressProxy
from execserver.services.egress.service import EgressService
from execserver.services.passed_listeners import HTTP_PORT, SOCKS_PORT, PassedListeners
from execserver.services.spawner import SpawnSpec

_MAX_TOLD = 16  # refused hosts that the result names
_NO = Verdict(Action.DENY, NOT_ALLOWED, Source.DECIDER)


class CallNetwork:
    """Made before the shell, for its environment and its start; `close` ends it.  Raises OSError."""

    def __init__(self, service: EgressService, rules: MachineRules, ask: Ask) -> None:
        self._ask = ask
        self._asking = BoundedSemaphore(1)
        self._answers: dict[tuple[str, int, str], Verdict] = {}
        self._refused: dict[str, None] = {}  # in the order in which they came
        self._pause: Callable[[], None] = _nothing
        self._resume: Callable[[], None] = _nothing
        self._passed = PassedListeners()
        self._proxy = EgressProxy(EgressPolicy((), machine=rules), service, self._decided, self._asked)
        self._proxy.expect(HTTP_PORT, SOCKS_PORT)

    def lead(self, spec: SpawnSpec) -> SpawnSpec:
        """Return the start of a shell with the variables and the descriptor that lead to the proxy."""
        return spec._replace(env={**dict(spec.env), **self._proxy.environment}, listeners_fd=self._passed.fd)

    def begin(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        """Serve the shell, which runs; `pause` and `resume` are called around each question."""
        self._pause, self._resume = pause, resume
        listeners = self._passed.take()
        http = listeners.pop(HTTP_PORT, None)
        if http is not None:
            self._proxy.listen_on(http, listeners.get(SOCKS_PORT))
            self._proxy.start()

    def note(self) -> str:
        """Return what the result says about the network, "" if nothing was refused."""
        refused = list(self._refused)
        lines = [f"{line}\n" for line in refused[:_MAX_TOLD]]
        if len(refused) > _MAX_TOLD:
            lines.append(f"{len(refused) - _MAX_TOLD} more were refused\n")
        return "".join(f"[network] {line}" for line in lines)

    def close(self) -> None:
        """End all connections."""
        self._proxy.close()
        self._passed.close()
        self._pause = self._resume = _nothing  # they refer to the call, which refers to this object

    def _decided(self, record: DecisionRecord) -> None:
        if not record.verdict.allows and len(self._refused) <= _MAX_TOLD:
            question = record.question
            what = f"{question.host}:{question.port} was refused ({record.verdict.reason})"
            self._refused[f"{what}; to let it through: {smallest_rule(question)}"] = None

    def _asked(self, question: Question) -> Verdict:
        key = (question.host, question.port, word_of(question.protocol))
        with self._asking:
            if key not in self._answers:
                self._pause()
                try:
                    answer = self._ask(HostQuestion(*key))
                finally:
                    self._resume()
                self._answers[key] = BY_CLIENT if answer is Answer.ACCEPT else _NO
            return self._answers[key]


def _nothing() -> None:
    """Do nothing, in place of a callback, since the call is over."""
