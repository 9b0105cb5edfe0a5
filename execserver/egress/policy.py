"""The rules of one process, and the order in which they decide (wire contract, section 8.9).

Denials first; then addresses of this machine and its networks; then what is allowed.  Who asks then resolves
the name and has its addresses judged, and once more those that it connects to.
"""

from __future__ import annotations

from execserver.egress.addresses import Address, literal
from execserver.egress.decisions import (
    ALLOW,
    DENIED,
    METHOD_NOT_ALLOWED,
    MITM_REQUIRED,
    NOT_ALLOWED,
    NOT_ALLOWED_LOCAL,
    Action,
    Mode,
    Protocol,
    Question,
    Scope,
    Source,
    Verdict,
)
from execserver.egress.remembering import remember

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from execserver.egress.machine_rules import MachineRules
    from execserver.egress.patterns import Pattern

LOCALHOST = "localhost"
_Asked = tuple[str, int, Protocol]
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_HTTPS_PORT = 443

_DENIED = Verdict(Action.DENY, DENIED)
_NOT_ALLOWED = Verdict(Action.DENY, NOT_ALLOWED)
_LOCAL = Verdict(Action.DENY, NOT_ALLOWED_LOCAL)
_METHOD = Verdict(Action.DENY, METHOD_NOT_ALLOWED, Source.MODE_GUARD, Scope.NON_DOMAIN)
_MITM = Verdict(Action.DENY, MITM_REQUIRED, Source.MODE_GUARD, Scope.NON_DOMAIN)


class Rule:
    """A pattern, and for which ports (pairs of first and last) and protocols; nothing stands for all."""

    __slots__ = ("pattern", "ports", "protocols")

    def __init__(
        self,
        pattern: Pattern,
        ports: tuple[tuple[int, int], ...] = (),
        protocols: frozenset[Protocol] = frozenset(),
    ) -> None:
        self.pattern = pattern
        self.ports = ports
        self.protocols = protocols

    def concerns(self, question: Question) -> bool:
        """Return whether port and protocol are meant, whatever the host."""
        if self.protocols and question.protocol not in self.protocols:
            return False
        return not self.ports or any(low <= question.port <= high for low, high in self.ports)


class _Rules:
    """Rules of one kind; those for one host are found without looking at each."""

    __slots__ = ("_exact", "_wild")

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._exact: dict[str, list[Rule]] = {}
        self._wild: list[Rule] = []
        for rule in rules:
            if rule.pattern.exact is None:
                self._wild.append(rule)
            else:
                self._exact.setdefault(rule.pattern.exact, []).append(rule)

    def name(self, host: str, question: Question) -> bool:
        """Return whether a rule means this very host, without a wildcard."""
        return any(rule.concerns(question) for rule in self._exact.get(host, ()))

    def match(self, host: str, question: Question) -> bool:
        """Return whether any rule means this host."""
        return self.name(host, question) or any(
            rule.pattern.matches(host) and rule.concerns(question) for rule in self._wild
        )


class RuleSet:
    """What one source of rules says: what is denied, allowed, and allowed only after a question."""

    __slots__ = ("allow", "deny", "review")

    def __init__(self, allow: Iterable[Rule], deny: Iterable[Rule] = (), review: Iterable[Rule] = ()) -> None:
        self.allow = _Rules(allow)
        self.deny = _Rules(deny)
        self.review = _Rules(review)

    def allows(self, question: Question) -> bool:
        """Return whether this set lets the question pass without another one."""
        host = question.host
        return self.allow.match(host, question) and not self.review.match(host, question)


class EgressPolicy:
    """What one process may reach.

    Of several rule sets a denial of any counts, and all have to allow: so the rules of a `machine` are laid
    over those of a client.  `allow_local_binding` is the client's: it lifts nothing of the machine's.

    Nothing of it changes, so what was decided once is decided: the last decisions are remembered.
    """

    __slots__ = (
        "_by_answers",
        "_by_host",
        "_local_rules",
        "allow_local_binding",
        "machine",
        "mode",
        "rule_sets",
        "socks",
        "socks_udp",
        "upstream",
    )

    def __init__(
        self,
        rule_sets: Sequence[RuleSet],
        *,
        mode: Mode = Mode.FULL,
        socks: bool = True,
        socks_udp: bool = False,
        allow_local_binding: bool = False,
        upstream: bool = False,
        machine: MachineRules | None = None,
    ) -> None:
        self.machine = machine
        self.rule_sets = (*rule_sets, *(() if machine is None else (machine.rule_set,)))
        self.mode = mode
        self.socks = socks
        self.socks_udp = socks_udp
        self.allow_local_binding = allow_local_binding
        self.upstream = upstream
        # Who alone decides about local addresses, if that is the machine.
        self._local_rules = None if rule_sets and not allow_local_binding else machine
        self._by_host: dict[_Asked, Verdict] = {}
        self._by_answers: dict[tuple[_Asked, tuple[Address, ...]], Verdict] = {}

    def judge(self, question: Question) -> Verdict:
        """Decide by the host as it was written."""
        verdict = self._by_host.get(question.key)
        if verdict is None:
            verdict = remember(self._by_host, question.key, self._judge(question))
        return verdict

    def judge_answers(self, question: Question, answers: Sequence[Address]) -> Verdict:
        """Decide by what the name was resolved to, after `judge` or a client has allowed it."""
        asked = question.key, tuple(answers)
        verdict = self._by_answers.get(asked)
        if verdict is None:
            verdict = remember(self._by_answers, asked, self._judge_answers(question, answers))
        return verdict

    def _judge(self, question: Question) -> Verdict:
        if self.machine is not None and (refusal := self.machine.refusal(question)) is not None:
            return refusal
        address = literal(question.host)
        if self._denies(question, question.host, address):
            return _DENIED
        if _is_local(question.host, address) and not self._names(question):
            return _LOCAL if self.machine is None else self.machine.local_refusal(question)
        return ALLOW if all(rules.allows(question) for rules in self.rule_sets) else _NOT_ALLOWED

    def _judge_answers(self, question: Question, answers: Sequence[Address]) -> Verdict:
        if any(self._denies(question, address.text, address) for address in answers):
            return _DENIED
        if self.allow_local_binding and self.machine is None:
            return ALLOW
        if answers and self._may_be(question, answers):
            return ALLOW
        rules = self._local_rules
        return _LOCAL if rules is None else rules.refusal_of_answers(question, answers)

    def judge_mode(self, question: Question, method: str | None) -> Verdict:
        """Decide by the mode, after everything else has allowed it."""
        if self.mode is Mode.FULL:
            return ALLOW
        if question.protocol is Protocol.HTTP:
            return ALLOW if method in _READING else _METHOD
        return _MITM

    def refuses_port(self, question: Question) -> Verdict | None:
        """Return the refusal of a SOCKS connection that no mode but `full` takes, whatever its host."""
        # The reference looks at hosts only where it could read the connection, if it had a certificate.
        if self.mode is Mode.LIMITED and question.port != _HTTPS_PORT:
            return _METHOD
        return None

    def _denies(self, question: Question, host: str, address: Address | None) -> bool:
        spellings = {host}
        if address is not None:
            spellings |= {address.text, address.meant.text}
        return any(rules.deny.match(one, question) for rules in self.rule_sets for one in spellings)

    def _names(self, question: Question) -> bool:
        """Return whether each set allows exactly this host; a pattern never means a local one.

        With local binding that holds for the machine's alone.
        """
        own = () if self.machine is None else (self.machine.rule_set,)
        asked = own if self.allow_local_binding else self.rule_sets
        return all(rules.allow.name(question.host, question) for rules in asked)

    def _may_be(self, question: Question, answers: Sequence[Address]) -> bool:
        if literal(question.host) is not None:
            return True  # `judge` has looked at it, and it leads nowhere else
        if question.host == LOCALHOST:
            return all(address.is_loopback for address in answers)
        rules = self._local_rules
        return all(
            address.is_public or (rules is not None and rules.names(question, address)) for address in answers
        )


def _is_local(host: str, address: Address | None) -> bool:
    return host == LOCALHOST if address is None else not address.is_public
