"""The language of rules files: what is declared, and what is said about mistakes."""

from __future__ import annotations

import re

import pytest

from execserver.mcp.rules_language import RulesFileError, evaluate
from execserver.rules.policy import ALLOW, FORBIDDEN, PROMPT, HostExecutable, Rule
from tests.mcp.snippets import Snippet, snippets

ERROR = re.compile(r"^(?:starlark error: )?error: (.*?)\n *--> (.*?):(\d+:\d+)$", re.MULTILINE | re.DOTALL)


def refused(source: str) -> str:
    with pytest.raises(RulesFileError) as caught:
        evaluate("/the/rules", source)
    return str(caught.value)


@pytest.mark.parametrize("snippet", [each for each in snippets() if each.message is None])
def test_what_the_reference_takes_is_taken(snippet: Snippet) -> None:
    evaluate("/the/rules", snippet.source)


@pytest.mark.parametrize("snippet", [each for each in snippets() if each.message is not None])
def test_what_the_reference_refuses_is_refused_with_its_words(snippet: Snippet) -> None:
    found = ERROR.search(refused(snippet.source))
    assert found is not None
    assert found.groups() == (snippet.message, "/the/rules", snippet.place)


def test_a_refused_call_is_shown_as_the_reference_shows_it() -> None:
    assert refused('def f():\n  prefix_rule(["a"],\n    decision="deny")\n\nf()') == (
        "starlark error: Traceback (most recent call last):\n"
        "  * /the/rules:5, in <module>\n"
        "      f()\n"
        "  * /the/rules:2, in f\n"
        '      prefix_rule(["a"],\n'
        "error: invalid decision: deny\n"
        " --> /the/rules:2:3\n"
        "  |\n"
        '2 |     prefix_rule(["a"],\n'
        "  |  ___^\n"
        '3 | |     decision="deny")\n'
        "  | |____________________^\n"
        "  |"
    )


def test_rules_know_their_words_and_their_line() -> None:
    source = """
prefix_rule(["git", ["fetch", "pull"]])
def never(tool):
    prefix_rule([tool], "forbidden", justification = f"no {tool}")
[never(tool) for tool in ["su", "doas"]]
prefix_rule(
    [["npm", "yarn"], "add"],
    decision = "prompt",
    match = ["yarn add x # comment", ["npm", "add"]],
    not_match = ["npm 'add x'"],
)
"""
    rules, executables = evaluate("/r", source)
    assert rules == [
        Rule((("git",), ("fetch", "pull")), ALLOW, "/r:2"),
        Rule((("su",),), FORBIDDEN, "/r:4", "no su"),
        Rule((("doas",),), FORBIDDEN, "/r:4", "no doas"),
        Rule((("npm", "yarn"), ("add",)), PROMPT, "/r:6"),
    ]
    assert executables == []


def test_a_program_is_tied_to_its_files() -> None:
    _, executables = evaluate("/r", 'host_executable("git", ["/usr/bin/git", "/bin/git", "/bin/git"])')
    assert executables == [HostExecutable("git", ("/usr/bin/git", "/bin/git"))]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ('("", [])', "invalid rule: host_executable name cannot be empty"),
        ('("a/b", [])', "invalid rule: host_executable name must be a bare executable name (got a/b)"),
        ('("..", [])', "invalid rule: host_executable name must be a bare executable name (got ..)"),
        ('("b", [5])', "invalid rule: host_executable paths must be strings (got int)"),
        ('("b", ["b"])', "invalid rule: host_executable paths must be absolute (got b)"),
        ('("b", ["/a"])', "invalid rule: host_executable path `/a` must have basename `b`"),
        ("(5, [])", "Type of parameter `name` doesn't match, expected `str`, actual `int (repr: 5)`"),
        ('("b")', "Missing parameter `paths` for call to `host_executable`"),
    ],
)
def test_a_wrong_declaration_of_a_program_is_refused(call: str, message: str) -> None:
    assert f"error: {message}\n --> /the/rules:1:1\n" in refused(f"host_executable{call}")


def test_rules_about_hosts_are_refused_rather_than_passed_over() -> None:
    told = refused('network_rule(host = "a.example", protocol = "https", decision = "allow")')
    assert "error: invalid rule: network_rule is not supported: nothing here looks at hosts\n" in told


def test_files_do_not_see_each_other() -> None:
    evaluate("/one", "shared = 5")
    assert "Variable `shared` not found" in refused("shared")


def test_the_call_that_is_refused_is_shown_although_others_went_before() -> None:
    source = 'a = prefix_rule\nfor word in ["a", "b", ""]:\n    a([word], "allow" if word else "deny")\n'
    assert " --> /the/rules:3:5\n" in refused(source)
