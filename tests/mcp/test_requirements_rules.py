"""Rules in a requirements file, and what the reference (0.97.0) says about mistakes in it."""

from __future__ import annotations

import pytest

from execserver.mcp.requirements_rules import RequirementsError, requirement_rules
from execserver.rules.policy import FORBIDDEN, PROMPT, Rule

FILE = "/etc/codex/requirements.toml"
WORD = "invalid pattern token at index"


def rules(*entries: str) -> list[Rule]:
    return requirement_rules(FILE, f"[rules]\nprefix_rules = [{', '.join(entries)}]\n")


def refused(*entries: str) -> str:
    with pytest.raises(RequirementsError) as caught:
        rules(*entries)
    return str(caught.value)


def test_restrictions_become_rules() -> None:
    found = rules(
        '{ pattern = [{ token = "id" }], decision = "forbidden", justification = "why" }',
        '{ pattern = [{ any_of = ["a", "b"] }, { token = "x" }], decision = "prompt", other = 1 }',
    )
    assert found == [
        Rule((("id",),), FORBIDDEN, f"{FILE}:prefix_rules[0]", "why"),
        Rule((("a", "b"), ("x",)), PROMPT, f"{FILE}:prefix_rules[1]"),
    ]


def test_a_file_without_rules_has_none() -> None:
    assert requirement_rules(FILE, "") == []
    assert requirement_rules(FILE, 'allowed_approval_policies = ["never"]\n[network]\nx = 1') == []


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        (
            '{ pattern = [{ token = "id" }], decision = "allow" }',
            "has decision 'allow', which is not permitted in requirements.toml (use 'prompt' or 'forbidden')",
        ),
        ('{ pattern = [{ token = "id" }] }', "is missing a decision"),
        ('{ pattern = [], decision = "prompt" }', "has an empty pattern"),
        ("{ pattern = [] }", "has an empty pattern"),
        ('{ pattern = [], justification = " " }', "has an empty justification"),
        ('{ pattern = [{ token = "" }], decision = "prompt" }', f"has an {WORD} 0: token cannot be empty"),
        ('{ pattern = [{ token = " " }] }', f"has an {WORD} 0: token cannot be empty"),
        ("{ pattern = [{ any_of = [] }] }", f"has an {WORD} 0: any_of cannot be empty"),
        (
            '{ pattern = [{ token = "a" }, { any_of = ["a", ""] }], decision = "allow" }',
            f"has an {WORD} 1: any_of cannot include empty tokens",
        ),
        (
            '{ pattern = [{ token = "", any_of = [] }] }',
            f"has an {WORD} 0: set either token or any_of, not both",
        ),
        ("{ pattern = [{ }] }", f"has an {WORD} 0: set either token or any_of"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(entry: str, what: str) -> None:
    text = f"invalid rules in requirements (set by {FILE}): rules prefix_rule at index"
    assert refused(entry) == f"{text} 0 {what}"
    good = '{ pattern = [{ token = "a" }], decision = "prompt" }'
    assert refused(good, entry) == f"{text} 1 {what}"


def test_no_rules_at_all_are_refused() -> None:
    assert refused() == f"invalid rules in requirements (set by {FILE}): rules prefix_rules cannot be empty"


@pytest.mark.parametrize(
    "content",
    [
        *("rules =", "[rules]", "rules = 5", "rules = {prefix_rules = 5}", "rules = {prefix_rules = [5]}"),
        *(
            f"rules = {{prefix_rules = [{{{rule}}}]}}"
            for rule in (
                'decision = "prompt"',
                'pattern = 5, decision = "prompt"',
                'pattern = ["a"], decision = "prompt"',
                'pattern = [{token = 5}], decision = "prompt"',
                'pattern = [{any_of = "a"}], decision = "prompt"',
                'pattern = [{any_of = [5]}], decision = "prompt"',
                'pattern = [{token = "a"}], decision = "deny"',
                'pattern = [{token = "a"}], decision = 5',
                'pattern = [{token = "a"}], decision = "prompt", justification = 5',
            )
        ),
        f"x = {'[' * 100_000}",
    ],
)
def test_what_is_malformed_is_told(content: str) -> None:
    with pytest.raises(RequirementsError) as caught:
        requirement_rules(FILE, content)
    assert str(caught.value).startswith(f"Error parsing requirements file {FILE}: ")
