"""What the audit log tells of the connections of a process, and how little one that floods it can add."""

from __future__ import annotations

from typing import Any

import pytest

from execserver.egress.decisions import (
    ALLOW,
    NOT_ALLOWED,
    Action,
    DecisionRecord,
    Protocol,
    Question,
    Verdict,
)
from execserver.egress.rules_file import parse_rules
from execserver.services.egress.trail import MAX_DESTINATIONS, NetworkTrail

REFUSED = Verdict(Action.DENY, NOT_ALLOWED)


class Log:
    """Keeps what would be written."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def record(self, event: str, **members: object) -> None:
        assert event == "network"
        self.told.append(members)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def trail(log: Log) -> NetworkTrail:
    return NetworkTrail(log, "p", {"session": "12345678"})  # type: ignore[arg-type]


def decision(host: str, verdict: Verdict = ALLOW, port: int = 443) -> DecisionRecord:
    return DecisionRecord(verdict, Question(Protocol.HTTPS_CONNECT, host, port), "CONNECT", "127.0.0.1:1")


def test_a_destination_is_told_with_what_was_decided(trail: NetworkTrail, log: Log) -> None:
    trail.decided(decision("a.example"))
    trail.decided(decision("b.example", REFUSED))
    common = {"session": "12345678", "process": "p", "port": 443, "protocol": "https_connect"}
    common["source"] = "baseline_policy"
    assert log.told == [
        {**common, "host": "a.example", "decision": "allow", "reason": "allow"},
        {**common, "host": "b.example", "decision": "deny", "reason": "not_allowed"},
    ]


def test_a_refusal_for_want_of_a_rule_names_it(trail: NetworkTrail, log: Log) -> None:
    machine = parse_rules('deny = ["c.example"]').of("")
    for host in ("b.example", "c.example"):
        question = Question(Protocol.HTTPS_CONNECT, host, 443)
        refusal = machine.refusal(question)
        assert refusal is not None
        trail.decided(DecisionRecord(refusal, question, "CONNECT", "127.0.0.1:1"))
    assert [each.get("rules") for each in log.told] == [("https://b.example",), None]


def test_what_comes_over_and_over_is_told_ever_more_seldom(trail: NetworkTrail, log: Log) -> None:
    for _ in range(12_345):
        trail.decided(decision("a.example"))
    assert [each.get("times", 1) for each in log.told] == [1, 10, 100, 1000, 10_000]


def test_other_ports_and_decisions_are_other_destinations(trail: NetworkTrail, log: Log) -> None:
    for verdict in (ALLOW, REFUSED):
        for port in (443, 8443, 443):
            trail.decided(decision("a.example", verdict, port))
    assert [(each["port"], each["decision"]) for each in log.told] == [
        *((443, "allow"), (8443, "allow"), (443, "deny"), (8443, "deny"))
    ]


def test_ever_new_names_fill_no_log(trail: NetworkTrail, log: Log) -> None:
    for number in range(MAX_DESTINATIONS + 5_000):
        trail.decided(decision(f"n{number}.example"))
    named, others = log.told[:MAX_DESTINATIONS], log.told[MAX_DESTINATIONS:]
    assert named[-1]["host"] == f"n{MAX_DESTINATIONS - 1}.example"
    assert [each.get("times", 1) for each in others] == [1, 10, 100, 1000]
    assert all(each["others"] and "host" not in each for each in others)
