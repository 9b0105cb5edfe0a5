"""The file of `--network-rules`: what its rules mean, and what is said of one that cannot serve."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from execserver.egress.config import domain_rules
from execserver.egress.decisions import (
    DENIED,
    NOT_ALLOWED,
    NOT_ALLOWED_LOCAL,
    DecisionRecord,
    Protocol,
    Question,
)
from execserver.egress.machine_rules import MachineRules, Refusals, smallest_rule
from execserver.egress.policy import EgressPolicy
from execserver.egress.rules_file import MAX_RULES, RulesFileError, parse_rules
from execserver.egress.rules_reading import rules_of_file
from execserver.leaving import Leave

HTTP, CONNECT, SOCKS = Protocol.HTTP, Protocol.HTTPS_CONNECT, Protocol.SOCKS5_TCP
TEXT = """
allow = ["https://index.example.org", "*.example.net:80,8000-8010", "any.example", "socks5://git.example:22"]
deny = ["bad.example.net"]
review = ["https://github.com"]

[label.ci]
allow = ["http://registry.example:5000"]
"""


def reason(rules: MachineRules, protocol: Protocol, host: str, port: int) -> str:
    """Return the reason of a refusal, "" where there is none, "review" where a yes is needed."""
    policy = EgressPolicy((), machine=rules)
    verdict = policy.judge(Question(protocol, host, port))
    if verdict.allows:
        return ""
    return verdict.reason if verdict.note else "review"


@pytest.mark.parametrize(
    ("protocol", "host", "port", "expected"),
    [
        (CONNECT, "index.example.org", 443, ""),
        (CONNECT, "index.example.org", 8443, NOT_ALLOWED),
        (HTTP, "index.example.org", 443, NOT_ALLOWED),
        (HTTP, "deb.example.net", 80, ""),
        (CONNECT, "deb.example.net", 8010, ""),
        (CONNECT, "deb.example.net", 8011, NOT_ALLOWED),
        (HTTP, "example.net", 80, NOT_ALLOWED),
        (HTTP, "bad.example.net", 80, DENIED),
        (SOCKS, "any.example", 1, ""),
        (SOCKS, "git.example", 22, ""),
        (CONNECT, "git.example", 22, NOT_ALLOWED),
        (CONNECT, "github.com", 443, "review"),
        (HTTP, "github.com", 80, NOT_ALLOWED),
        (CONNECT, "elsewhere.example", 443, NOT_ALLOWED),
    ],
)
def test_a_rule_means_a_host_its_ports_and_its_protocol(
    protocol: Protocol, host: str, port: int, expected: str
) -> None:
    assert reason(parse_rules(TEXT).of(""), protocol, host, port) == expected


def test_the_rules_of_a_label_come_to_those_of_all() -> None:
    rules = parse_rules(TEXT)
    assert reason(rules.of("ci"), HTTP, "registry.example", 5000) == ""
    assert reason(rules.of("other"), HTTP, "registry.example", 5000) == NOT_ALLOWED
    assert reason(rules.of("ci"), HTTP, "bad.example.net", 80) == DENIED
    assert reason(rules.of(None), CONNECT, "index.example.org", 443) == NOT_ALLOWED


@pytest.mark.parametrize(
    ("protocol", "host", "port", "rule"),
    [
        (CONNECT, "index.example.org", 443, "https://index.example.org"),
        (CONNECT, "index.example.org", 22, "https://index.example.org:22"),
        (HTTP, "deb.example.net", 80, "http://deb.example.net"),
        (SOCKS, "2001:4860::1", 443, "socks5://[2001:4860::1]:443"),
        (Protocol.SOCKS5_UDP, "ns.example", 53, "socks5-udp://ns.example:53"),
    ],
)
def test_a_refusal_names_the_smallest_rule_that_would_let_it_through(
    protocol: Protocol, host: str, port: int, rule: str
) -> None:
    question = Question(protocol, host, port)
    assert smallest_rule(question) == rule
    line = f'allow = ["{rule}"]'
    refusal = parse_rules("").of("").refusal(question)
    assert refusal is not None
    assert refusal.message == (
        f"Domain not in allowlist. {host} is in no list of the network rules of this machine; "
        f"to let it through: {line}"
    )
    learnt = parse_rules(line).of("")
    assert reason(learnt, protocol, host, port) == ""
    assert reason(learnt, protocol, host, port + 1) == NOT_ALLOWED
    assert reason(learnt, protocol, "other.example", port) == NOT_ALLOWED


def test_a_rule_is_suggested_only_where_it_would_help() -> None:
    policy = EgressPolicy((), machine=parse_rules(TEXT).of(""))
    refusals = Refusals(most=4)

    def told(host: str, port: int = 443) -> str:
        question = Question(CONNECT, host, port)
        return refusals.line(DecisionRecord(policy.judge(question), question, "CONNECT", "127.0.0.1:1"))

    assert told("index.example.org") == ""
    assert told("bad.example.net") == "[network] bad.example.net:443 was refused (denied)"
    assert told("github.com") == "[network] github.com:443 was refused (not_allowed)"
    refused = "[network] other.example:443 was refused (not_allowed)"
    assert told("other.example") == f'{refused}; to let it through: allow = ["https://other.example"]'
    assert told("other.example") == ""
    assert [bool(told(f"n{number}.example")) for number in range(3)] == [True, False, False]


def test_where_nobody_is_asked_what_is_in_review_is_refused_and_told_so() -> None:
    rules = parse_rules(TEXT).of("")
    github, index = Question(CONNECT, "github.com", 443), Question(CONNECT, "index.example.org", 443)
    refusal = rules.unasked().refusal(github)
    assert refusal is not None
    assert (refusal.reason, refusal.rules) == (NOT_ALLOWED, ())
    assert refusal.note == (
        "github.com is in review in the network rules of this machine, and nobody is asked here."
    )
    assert (rules.refusal(github), rules.unasked().refusal(index)) == (None, None)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "10.0.0.5", "::1"])
def test_a_local_host_that_a_pattern_would_allow_is_refused_with_the_rule_that_names_it(host: str) -> None:
    question = Question(HTTP, host, 8080)
    verdict = EgressPolicy((), machine=parse_rules('allow = ["*"]').of("")).judge(question)
    line = f'allow = ["{smallest_rule(question)}"]'
    assert (verdict.reason, verdict.message) == (
        NOT_ALLOWED_LOCAL,
        f"Sandbox policy blocks local/private network addresses. {host} has to be named exactly by the "
        f"network rules of this machine; to let it through: {line}",
    )
    assert EgressPolicy((), machine=parse_rules(line).of("")).judge(question).allows


def test_where_a_client_does_not_name_a_local_host_no_rule_of_the_machine_is_missing() -> None:
    machine = parse_rules('allow = ["http://127.0.0.1:8080"]').of("")
    policy = EgressPolicy((domain_rules(["*"], [], []),), machine=machine)
    verdict = policy.judge(Question(HTTP, "127.0.0.1", 8080))
    assert (verdict.reason, verdict.note) == (NOT_ALLOWED_LOCAL, "")


def test_an_empty_file_allows_nothing() -> None:
    assert reason(parse_rules("").of(""), CONNECT, "index.example.org", 443) == NOT_ALLOWED


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ('allow = ["a.example"\ndeny = []', 2, "Unclosed array"),
        ("allow = [", 1, "Invalid value"),
        ('allow = ["a.example"\n\n', 1, "Unclosed array"),
        ('# ftp://b.example\nallow = ["ftp://b.example"]', 2, "unknown protocol ftp"),
        ('allow = ["a.example"]\n[label.ci]\nallow = "a.example"', 3, "allow is no list"),
        ('[label.a]\nallow = [ ]\n[label."b c"]\nallow = 3', 4, "allow is no list"),
        ('\nallow = "a.example"', 2, "allow is no list"),
        ("allow = [1]", 1, "allow has something that is no text"),
        ('alow = ["a.example"]', 1, "unknown name alow"),
        ('\n\n[label.ci]\nallow = []\nmode = "full"', 5, "unknown name mode"),
        ("label = 1", 1, "label is no table"),
        ('[label]\nci = "x"', 2, "label.ci is no table"),
        ('allow = [\n "a.example",\n "ftp://b.example"]', 3, "unknown protocol ftp"),
        ('allow = ["a.example:0"]', 1, "no port or range of ports: 0"),
        ('allow = ["a.example:90-80"]', 1, "no port or range of ports: 90-80"),
        ('allow = ["a.example:70000"]', 1, "no port or range of ports: 70000"),
        ('allow = ["a.example:"]', 1, "no port or range of ports: a.example:"),
        ('allow = ["https://a.example/path"]', 1, "unsupported domain pattern syntax"),
        ('allow = ["https://"]', 1, "domain pattern is empty"),
        ('deny = ["*"]', 1, "invalid value for network.denied_domains: *"),
        ('allow = ["a:b:c"]', 1, "no port or range of ports: b:c"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_a_remedy(text: str, line: int, told: str) -> None:
    with pytest.raises(RulesFileError) as caught:
        parse_rules(text)
    assert (caught.value.line, told in str(caught.value)) == (line, True), str(caught.value)
    assert caught.value.cure


def test_there_is_a_limit_to_rules() -> None:
    with pytest.raises(RulesFileError, match="more than 10000 rules"):
        parse_rules(f"allow = {['a.example'] * (MAX_RULES + 1)}")


def refused(path: Path) -> str:
    with pytest.raises(Leave) as left:
        rules_of_file(str(path))
    assert left.value.status == 1
    return left.value.stderr.replace(str(path), "FILE")


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    assert refused(path) == (
        "Error: FILE: No such file or directory\n  What to do: name a file of rules that can be read\n"
    )
    os.mkfifo(path)
    assert "it is no regular file" in refused(path)
    path.unlink()
    path.write_bytes(b'allow = ["a.example",\n"\xff"]')
    path.chmod(0o600)
    assert refused(path).startswith("Error: FILE:2: it is no UTF-8\n")
    path.write_text("allow = 1")
    assert refused(path).startswith("Error: FILE:1: allow is no list\n  What to do: write a list of texts")


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_can_write_to_decides_nothing(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "rules.toml"
    path.write_text("")
    path.chmod(mode)
    assert "others can write to it" in refused(path)
    path.chmod(0o644)
    assert rules_of_file(str(path)).of("").refusal(Question(CONNECT, "a.example", 443)) is not None
