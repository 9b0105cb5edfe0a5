"""What the owner of a machine lets the commands of one client reach, whatever the client says."""

from __future__ import annotations

from copy import copy

from execserver.egress.decisions import (
    DENIED,
    NOT_ALLOWED,
    NOT_ALLOWED_LOCAL,
    Action,
    DecisionRecord,
    Protocol,
    Question,
    Verdict,
)
from execserver.egress.policy import Rule, RuleSet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from execserver.egress.addresses import Address

# How a file of rules spells the protocols, and the ports that some of them mean where none is named.
WORDS = {
    "http": Protocol.HTTP,
    "https": Protocol.HTTPS_CONNECT,
    "socks5": Protocol.SOCKS5_TCP,
    "socks5-udp": Protocol.SOCKS5_UDP,
}
OWN_PORTS = {Protocol.HTTP: 80, Protocol.HTTPS_CONNECT: 443}
_THE_RULES = "the network rules of this machine"
_NAMED = f"to be named exactly by {_THE_RULES}"


class MachineRules:
    """Three lists of rules; what is in `review` needs a person's yes, what is in none is refused."""

    __slots__ = ("_asks", "_review", "rule_set")

    def __init__(self, allow: Iterable[Rule], deny: Iterable[Rule] = (), review: Iterable[Rule] = ()) -> None:
        reviewed = tuple(review)
        self.rule_set = RuleSet((*allow, *reviewed), deny, reviewed)
        self._review = RuleSet(reviewed)
        self._asks = True

    def unasked(self) -> MachineRules:
        """Return the same rules where nobody can be asked: what is in `review` is refused, and told so."""
        rules = copy(self)
        rules._asks = False
        return rules

    def refusal(self, question: Question) -> Verdict | None:
        """Return why a host is refused, for which nobody is asked; None if it is allowed or in review."""
        if self.rule_set.deny.match(question.host, question):
            return Verdict(Action.DENY, DENIED, note=f"{question.host} is denied by {_THE_RULES}.")
        if self.rule_set.allows(question):
            return None
        if self._review.allows(question):
            why = f"{question.host} is in review in {_THE_RULES}, and nobody is asked here."
            return None if self._asks else Verdict(Action.DENY, NOT_ALLOWED, note=why)
        return _for_want_of(f"{question.host} is in no list of {_THE_RULES}", NOT_ALLOWED, question)

    def local_refusal(self, question: Question) -> Verdict:
        """Return the refusal of a local host that `refusal` lets pass, as a pattern would let it."""
        if self.rule_set.allow.name(question.host, question):
            return Verdict(Action.DENY, NOT_ALLOWED_LOCAL)  # a client's rules do not name it
        return _for_want_of(f"{question.host} has {_NAMED}", NOT_ALLOWED_LOCAL, question)

    def names(self, question: Question, address: Address) -> bool:
        """Return whether rules let pass exactly this host and exactly the address that it leads to.

        Not by a pattern: whoever answers for a name below it could lead an honest program to the address.
        """
        lists, there = self.rule_set, address.text
        are_named = lists.allow.name(question.host, question) and lists.allow.name(there, question)
        return are_named and not lists.review.match(there, question)

    def refusal_of_answers(self, question: Question, answers: Iterable[Address]) -> Verdict:
        """Return the refusal of a host that leads nowhere, or to a local address that no rules name."""
        for address in answers:
            if not (address.is_public or self.names(question, address)):
                there = Question(question.protocol, address.text, question.port)
                why = f"{question.host} leads to {there.host}, and both have {_NAMED}"
                return _for_want_of(why, NOT_ALLOWED_LOCAL, question, there)
        return Verdict(Action.DENY, NOT_ALLOWED_LOCAL, note=f"No address of {question.host} is known.")


def _for_want_of(why: str, reason: str, *questions: Question) -> Verdict:
    rules = tuple(smallest_rule(question) for question in questions)
    return Verdict(Action.DENY, reason, note=f"{why}; {cure(rules)}", rules=rules)


def smallest_rule(question: Question) -> str:
    """Return the rule that lets through what was asked for, and as little else as possible."""
    word = word_of(question.protocol)
    host = f"[{question.host}]" if ":" in question.host else question.host
    port = "" if OWN_PORTS.get(question.protocol) == question.port else f":{question.port}"
    return f"{word}://{host}{port}"


def cure(rules: Iterable[str]) -> str:
    """Return what to do about missing rules."""
    listed = ", ".join(f'"{rule}"' for rule in rules)
    return f"to let it through: allow = [{listed}]"


def word_of(protocol: Protocol) -> str:
    """Return how a file of rules spells a protocol."""
    return next(word for word, spelled in WORDS.items() if spelled is protocol)


class Refusals:
    """What was refused, as lines for people; each is told once, `most` of them at most."""

    __slots__ = ("_told", "most")

    def __init__(self, most: int = 16) -> None:
        self.most = most
        self._told: set[str] = set()

    def line(self, record: DecisionRecord) -> str:
        """Return the line about a decision, "" for one that allows, or that was told."""
        if record.verdict.allows or len(self._told) >= self.most:
            return ""
        question, verdict = record.question, record.verdict
        line = f"[network] {question.host}:{question.port} was refused ({verdict.reason})"
        if verdict.rules:
            line += f"; {cure(verdict.rules)}"
        if line in self._told:
            return ""
        self._told.add(line)
        return line
