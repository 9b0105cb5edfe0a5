"""The order of decisions, and what the addresses of a name change."""

from __future__ import annotations

import pytest

from execserver.egress.addresses import Address, literal
from execserver.egress.config import domain_rules
from execserver.egress.decisions import Action, Mode, Protocol, Question
from execserver.egress.machine_rules import MachineRules
from execserver.egress.patterns import Pattern
from execserver.egress.policy import EgressPolicy, Rule, RuleSet
from execserver.egress.remembering import MAX_REMEMBERED
from execserver.egress.rules_file import parse_rules


def ask(host: str, port: int = 80, protocol: Protocol = Protocol.HTTP) -> Question:
    return Question(protocol, host, port)


def addresses(*texts: str) -> list[Address]:
    return [address for text in texts if (address := literal(text)) is not None]


def policy(*allowed: str, denied: tuple[str, ...] = (), reviewed: tuple[str, ...] = ()) -> EgressPolicy:
    return EgressPolicy([domain_rules(allowed, denied, reviewed)])


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("a.example", "allow"),
        ("other.example", "not_allowed"),
        ("denied.a.example", "denied"),
        ("reviewed.a.example", "not_allowed"),
        ("127.0.0.1", "not_allowed_local"),
        ("localhost", "not_allowed_local"),
        ("2130706433", "not_allowed_local"),
        ("0x7f.1", "not_allowed_local"),
        ("169.254.169.254", "not_allowed_local"),
        ("::ffff:169.254.169.254", "not_allowed_local"),
        ("64:ff9b::a9fe:a9fe", "not_allowed_local"),
        ("93.184.216.34", "not_allowed"),
    ],
)
def test_denials_come_first_then_local_addresses_then_what_is_allowed(host: str, reason: str) -> None:
    rules = policy("**.a.example", denied=("denied.a.example",), reviewed=("reviewed.a.example",))
    assert rules.judge(ask(host)).reason == reason


def test_a_denied_host_is_denied_even_if_it_is_to_be_reviewed() -> None:
    assert policy("*", denied=("a",), reviewed=("a",)).judge(ask("a")).reason == "denied"


@pytest.mark.parametrize("pattern", ["*", "127.*", "**.0.1", "local*", "?27.0.0.1"])
def test_no_pattern_allows_a_local_address(pattern: str) -> None:
    rules = policy(pattern)
    assert {rules.judge(ask(host)).reason for host in ("127.0.0.1", "localhost")} == {"not_allowed_local"}


def test_exactly_an_allowed_local_address_may_be_reached() -> None:
    rules = policy("127.0.0.1", "localhost", "[::ffff:10.0.0.1]")
    hosts = ["127.0.0.1", "localhost", "::ffff:10.0.0.1", "127.1", "127.0.0.2", "10.0.0.1"]
    assert [rules.judge(ask(host)).allows for host in hosts] == [True] * 3 + [False] * 3


@pytest.mark.parametrize("host", ["93.184.216.34", "0x5db8d822", "1572395042", "::ffff:93.184.216.34"])
def test_a_denied_address_is_denied_in_each_spelling(host: str) -> None:
    assert policy("*", denied=("93.184.216.34",)).judge(ask(host)).reason == "denied"


def test_a_name_that_leads_to_a_denied_address_is_denied() -> None:
    rules = policy("*", denied=("93.184.216.34",))
    assert rules.judge_answers(ask("a"), addresses("93.184.216.34")).reason == "denied"


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (("93.184.216.34",), "allow"),
        (("93.184.216.34", "10.0.0.1"), "not_allowed_local"),
        (("169.254.169.254",), "not_allowed_local"),
        (("::1",), "not_allowed_local"),
        ((), "not_allowed_local"),
    ],
)
def test_one_address_that_is_not_public_refuses_the_name(answers: tuple[str, ...], reason: str) -> None:
    assert policy("*").judge_answers(ask("a"), addresses(*answers)).reason == reason


def test_localhost_is_loopback_or_nothing() -> None:
    rules = policy("localhost")
    assert rules.judge_answers(ask("localhost"), addresses("127.0.0.1", "::1")).allows
    assert not rules.judge_answers(ask("localhost"), addresses("10.0.0.1")).allows


def test_with_local_binding_the_patterns_alone_decide() -> None:
    rules = EgressPolicy([domain_rules(["10.*"])], allow_local_binding=True)
    assert rules.judge(ask("10.0.0.1")).allows
    assert rules.judge(ask("127.0.0.1")).reason == "not_allowed"
    assert rules.judge_answers(ask("10.x"), []).allows


@pytest.mark.parametrize(
    ("protocol", "method", "reason"),
    [
        (Protocol.HTTP, "GET", "allow"),
        (Protocol.HTTP, "HEAD", "allow"),
        (Protocol.HTTP, "OPTIONS", "allow"),
        (Protocol.HTTP, "POST", "method_not_allowed"),
        (Protocol.HTTP, "get", "method_not_allowed"),
        (Protocol.HTTPS_CONNECT, "CONNECT", "mitm_required"),
        (Protocol.SOCKS5_TCP, None, "mitm_required"),
    ],
)
def test_the_limited_mode_lets_reading_pass(protocol: Protocol, method: str | None, reason: str) -> None:
    question = ask("a", protocol=protocol)
    assert EgressPolicy([], mode=Mode.LIMITED).judge_mode(question, method).reason == reason
    assert EgressPolicy([]).judge_mode(question, method).allows


def test_the_limited_mode_refuses_socks_to_other_ports_whatever_the_host() -> None:
    limited = EgressPolicy([], mode=Mode.LIMITED)
    refused = limited.refuses_port(ask("a", 80, Protocol.SOCKS5_TCP))
    assert refused is not None
    assert (refused.reason, refused.action) == ("method_not_allowed", Action.DENY)
    assert limited.refuses_port(ask("a", 443, Protocol.SOCKS5_TCP)) is None
    assert EgressPolicy([]).refuses_port(ask("a", 80, Protocol.SOCKS5_TCP)) is None


def test_a_rule_can_be_about_ports_and_protocols() -> None:
    rule = Rule(Pattern("a"), ports=((443, 443), (8000, 8999)), protocols=frozenset({Protocol.HTTPS_CONNECT}))
    rules = EgressPolicy([RuleSet([rule])])
    questions = [
        ask("a", 443, Protocol.HTTPS_CONNECT),
        ask("a", 8080, Protocol.HTTPS_CONNECT),
        ask("a", 80, Protocol.HTTPS_CONNECT),
        ask("a", 443, Protocol.SOCKS5_TCP),
    ]
    assert [rules.judge(question).allows for question in questions] == [True, True, False, False]


def test_of_several_sets_of_rules_all_have_to_allow() -> None:
    rules = EgressPolicy([domain_rules(["*"], ["bad"]), domain_rules(["a", "bad", "127.0.0.1"])])
    reasons = [rules.judge(ask(host)).reason for host in ("a", "b", "bad", "127.0.0.1")]
    assert reasons == ["allow", "not_allowed", "denied", "not_allowed_local"]


def over(*allowed: str) -> EgressPolicy:
    """Return a client's policy with local binding under rules of the machine."""
    machine = MachineRules([Rule(Pattern(text)) for text in allowed])
    return EgressPolicy([domain_rules(["*"])], allow_local_binding=True, machine=machine)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "169.254.169.254", "10.0.0.1", "::1"])
def test_no_client_lifts_what_the_machine_says_of_local_addresses(host: str) -> None:
    assert over("*").judge(ask(host)).reason == "not_allowed_local"
    assert over("*", host).judge(ask(host)).allows  # the machine names it, and the client's pattern will do


def test_no_client_lifts_what_the_machine_says_of_names_that_lead_to_local_addresses() -> None:
    rules = over("*.example")
    assert rules.judge(ask("a.example")).allows
    assert rules.judge_answers(ask("a.example"), addresses("93.184.216.34")).allows
    for inside in ("127.0.0.1", "169.254.169.254", "10.0.0.1"):
        assert rules.judge_answers(ask("a.example"), addresses(inside)).reason == "not_allowed_local"


ONE = "https://index.corp"
BOTH = f'allow = ["{ONE}", "https://10.0.0.5"]'


@pytest.mark.parametrize(
    ("text", "host", "port", "answers", "passes"),
    [
        (BOTH, "index.corp", 443, ("10.0.0.5",), True),
        (BOTH, "index.corp", 443, ("10.0.0.5", "93.184.216.34"), True),
        (BOTH, "index.corp", 443, ("10.0.0.5", "10.0.0.6"), False),
        (BOTH, "index.corp", 443, ("::ffff:10.0.0.5",), False),
        ('allow = ["index.corp:22", "https://10.0.0.5"]', "index.corp", 22, ("10.0.0.5",), False),
        ('allow = ["index.corp", "http://10.0.0.5:443"]', "index.corp", 443, ("10.0.0.5",), False),
        (f'allow = ["{ONE}", "10.*"]', "index.corp", 443, ("10.0.0.5",), False),
        ('allow = ["*.corp", "10.0.0.5"]', "evil.corp", 443, ("10.0.0.5",), False),
        (f'allow = ["{ONE}"]\nreview = ["10.0.0.5"]', "index.corp", 443, ("10.0.0.5",), False),
        (f'{BOTH}\ndeny = ["10.0.0.5"]', "index.corp", 443, ("10.0.0.5",), False),
    ],
)
def test_rules_of_the_machine_may_name_a_host_and_the_local_address_that_it_leads_to(
    text: str, host: str, port: int, answers: tuple[str, ...], passes: bool
) -> None:
    rules = EgressPolicy((), machine=parse_rules(text).of(""))
    question = ask(host, port, Protocol.HTTPS_CONNECT)
    assert rules.judge(question).allows
    assert rules.judge_answers(question, addresses(*answers)).allows is passes


@pytest.mark.parametrize(("is_lifted", "reason"), [(False, "not_allowed_local"), (True, "allow")])
def test_a_client_that_has_not_lifted_its_own_rules_is_kept_to_them(is_lifted: bool, reason: str) -> None:
    client = domain_rules(["index.corp", "10.0.0.5"])
    machine = parse_rules(BOTH).of("")
    rules = EgressPolicy([client], allow_local_binding=is_lifted, machine=machine)
    verdict = rules.judge_answers(ask("index.corp", 443, Protocol.HTTPS_CONNECT), addresses("10.0.0.5"))
    assert (verdict.reason, verdict.note) == (reason, "")


def test_a_name_that_leads_to_a_local_address_is_refused_with_the_rules_that_let_it_through() -> None:
    question = ask("a.corp", 443, Protocol.HTTPS_CONNECT)
    verdict = EgressPolicy((), machine=parse_rules('allow = ["*.corp"]').of("")).judge_answers(
        question, addresses("93.184.216.34", "10.0.0.5")
    )
    assert verdict.rules == ("https://a.corp", "https://10.0.0.5")
    assert verdict.message == (
        "Sandbox policy blocks local/private network addresses. a.corp leads to 10.0.0.5, and both have to "
        "be named exactly by the network rules of this machine; "
        'to let it through: allow = ["https://a.corp", "https://10.0.0.5"]'
    )


def test_a_name_without_addresses_is_said_to_have_none() -> None:
    verdict = EgressPolicy((), machine=parse_rules('allow = ["a.corp"]').of("")).judge_answers(
        ask("a.corp"), []
    )
    assert (verdict.note, verdict.rules) == ("No address of a.corp is known.", ())


def test_a_remembered_decision_is_the_one_that_is_made_anew() -> None:
    hosts = ["a.example", "denied.a.example", "10.0.0.1", "127.1", "localhost", "other"]
    answers = [addresses("93.184.216.34"), addresses("93.184.216.34", "10.0.0.1"), addresses("127.0.0.1"), []]
    ports = [(80, Protocol.HTTP), (443, Protocol.HTTP), (443, Protocol.SOCKS5_TCP)]
    allow = [
        Rule(Pattern("**.a.example"), ((443, 443),)),
        Rule(Pattern("10.0.0.1")),
        Rule(Pattern("localhost")),
    ]
    deny = [Rule(Pattern("denied.a.example")), Rule(Pattern("127.0.0.1"), (), frozenset((Protocol.HTTP,)))]

    def made() -> EgressPolicy:
        return EgressPolicy([RuleSet(allow, deny)])

    rules = made()
    for _ in range(2):
        for host in hosts:
            for port, protocol in ports:
                question = ask(host, port, protocol)
                assert rules.judge(question).reason == made().judge(question).reason
                for found in answers:
                    fresh = made().judge_answers(question, found)
                    assert rules.judge_answers(question, found).reason == fresh.reason


def test_only_the_last_decisions_are_remembered() -> None:
    rules = policy("*")
    for index in range(3 * MAX_REMEMBERED):
        assert rules.judge(ask(f"n{index}.example")).allows
        assert rules.judge_answers(ask("a"), addresses(f"8.8.{index // 256}.{index % 256}")).allows
        assert max(len(rules._by_host), len(rules._by_answers)) <= MAX_REMEMBERED
