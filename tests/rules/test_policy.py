"""The decision for one exec: recorded cases, and a slow model that shares no code."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.rules.policy import (
    ALLOW,
    ASK_TO_ESCALATE,
    ASK_TO_RUN,
    DENY,
    ESCALATE,
    FORBIDDEN,
    PROMPT,
    RUN,
    HostExecutable,
    Policy,
    Rule,
    Verdict,
)


def rule(decision: int, *words: str | tuple[str, ...], where: str = "a.rules:1") -> Rule:
    return Rule(tuple((word,) if isinstance(word, str) else word for word in words), decision, where)


def decide(rules: list[Rule], command: str, **options: bool) -> int:
    file, *arguments = command.split()
    return Policy(rules).decide(file, arguments, **options).action


# The commands of the recorded sessions, with rules that lead to the recorded outcomes.
RECORDED = {
    "forbidden": (
        [rule(FORBIDDEN, "id"), rule(FORBIDDEN, "seq"), rule(FORBIDDEN, "factor"), rule(ALLOW, "id", "-u")],
        {
            "/usr/bin/id": DENY,
            "/usr/bin/id -u": DENY,
            "/usr/bin/seq 3": DENY,
            "/usr/bin/factor 4": DENY,
            "/usr/bin/true": RUN,
        },
    ),
    "matching-is-by-program-name": (
        [rule(FORBIDDEN, "seq"), rule(FORBIDDEN, "id")],
        {"/the/workdir/seq": DENY, "/usr/bin/whoami": RUN},
    ),
    "alternatives-in-pattern": (
        [rule(ALLOW, "mkdir", ("one", "two"))],
        {
            "/bin/mkdir two": ESCALATE,
            "/bin/mkdir three": RUN,
            "/bin/mkdir one p": ESCALATE,
            "/bin/mkdir": RUN,
        },
    ),
    "rules-several-files-strictest-wins": (
        [rule(ALLOW, "seq"), rule(FORBIDDEN, "seq", "2", where="b.rules:1")],
        {"/usr/bin/seq 1": ESCALATE, "/usr/bin/seq 2": DENY},
    ),
    "rules-none": ([], {"/usr/bin/id -u": RUN, "/bin/true": RUN}),
    "prompt-dangerous-without-rule": ([], {"/usr/bin/rm -f keep": ASK_TO_RUN, "/usr/bin/rm keep2": RUN}),
    "prompt-accept": ([rule(PROMPT, "touch")], {"/usr/bin/touch x": ASK_TO_ESCALATE}),
    "script-by-full-path": ([rule(ALLOW, "runme.sh")], {"/the/workdir/runme.sh a b": ESCALATE}),
}


@pytest.mark.parametrize("name", RECORDED)
def test_the_outcome_is_the_recorded_one(name: str) -> None:
    rules, outcomes = RECORDED[name]
    assert {command: decide(rules, command) for command in outcomes} == outcomes


def test_with_whole_paths_names_match_nothing() -> None:
    rules = [rule(FORBIDDEN, "/usr/bin/id"), rule(FORBIDDEN, "whoami")]
    assert decide(rules, "/usr/bin/id", full_path=True) == DENY
    assert decide(rules, "/usr/bin/whoami", full_path=True) == RUN
    assert decide([], "/usr/bin/rm -f x", full_path=True) == RUN
    assert decide([], "/usr/bin/git reset", full_path=True) == ASK_TO_RUN


def test_a_pattern_may_begin_with_a_path() -> None:
    rules = [rule(ALLOW, "/usr/bin/make")]
    assert decide(rules, "/usr/bin/make all") == ESCALATE
    assert decide(rules, "/home/me/make all") == RUN


def test_the_strictest_of_path_and_name_decides() -> None:
    assert decide([rule(ALLOW, "/bin/x"), rule(FORBIDDEN, "x")], "/bin/x") == DENY
    assert decide([rule(FORBIDDEN, "/bin/x"), rule(ALLOW, "x")], "/bin/x") == DENY


def test_a_declared_program_is_one_of_its_files_only() -> None:
    policy = Policy([rule(ALLOW, "git")], [HostExecutable("git", ("/usr/bin/git",))])
    assert policy.decide("/usr/bin/git", []).action == ESCALATE
    assert policy.decide("/home/me/git", []).action == RUN
    assert policy.matching("/home/me/git", []) == []


def test_the_last_declaration_of_a_program_counts() -> None:
    executables = [HostExecutable("x", ("/a/x",)), HostExecutable("x", ("/b/x",))]
    policy = Policy([rule(ALLOW, "x")], executables)
    assert [policy.decide(file, []).action for file in ("/a/x", "/b/x")] == [RUN, ESCALATE]


def test_a_name_without_files_stands_for_none() -> None:
    policy = Policy([rule(ALLOW, "x"), rule(FORBIDDEN, "/c/x")], [HostExecutable("x", ())])
    assert [policy.decide(file, []).action for file in ("/a/x", "/c/x")] == [RUN, DENY]


def test_the_first_of_the_strictest_rules_is_named() -> None:
    rules = [
        rule(ALLOW, "x", where="a:1"),
        rule(PROMPT, "x", "y", where="a:2"),
        rule(PROMPT, "/bin/x", where="b:1"),
    ]
    policy = Policy(rules)
    assert policy.decide("/bin/x", ["y"]) == Verdict(ASK_TO_ESCALATE, rules[1])
    assert policy.matching("/bin/x", ["y"]) == rules
    assert policy.decide("/bin/y", []).rule is None


def test_arguments_that_are_no_text_are_compared_byte_by_byte() -> None:
    policy = Policy([rule(ALLOW, "x", "\udcff")])
    assert policy.decide("/bin/x", [b"\xff".decode("utf-8", "surrogateescape")]).action == ESCALATE
    assert policy.decide("/bin/x", ["\xff"]).action == RUN


def test_a_word_may_be_empty() -> None:
    assert decide([rule(ALLOW, "x", "")], "/bin/x") == RUN
    assert Policy([rule(ALLOW, "x", "")]).decide("/bin/x", [""]).action == ESCALATE


WORDS = st.sampled_from(["a", "b", "/bin/a", "/b", ""])
PATTERNS = st.lists(st.lists(WORDS, min_size=1, max_size=2).map(tuple), min_size=1, max_size=3).map(tuple)
RULES = st.lists(st.builds(Rule, PATTERNS, st.sampled_from([ALLOW, PROMPT, FORBIDDEN]), st.just("r:1")))
EXECUTABLES = st.lists(
    st.builds(
        HostExecutable,
        st.sampled_from("ab"),
        st.lists(st.sampled_from(["/bin/a", "/b"]), max_size=2).map(tuple),
    ),
    max_size=3,
)


def model(
    rules: list[Rule], executables: list[HostExecutable], file: str, rest: list[str], full_path: bool
) -> int:
    """The action, by writing every rule out as all commands it stands for."""
    commands = [(file, *rest)]
    name = file.split("/")[-1]
    declared = [each.paths for each in executables if each.name == name]
    if not full_path and (not declared or file in declared[-1]):
        commands.append((name, *rest))
    found = [
        each.decision
        for each in rules
        for words in itertools.product(*each.pattern)
        for command in commands
        if command[: len(words)] == words
    ]
    return [ESCALATE, ASK_TO_ESCALATE, DENY][max(found)] if found else RUN


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/bin/cat", True),
        ("/bin/a", False),
        ("/x/a", False),
        ("/b", False),
        ("/x/b", True),
        ("/bin/rm", False),
        ("/bin/mygit", False),
        ("/bin/zsh", False),
        ("/bin/sudo", False),
    ],
)
def test_a_file_always_runs_if_no_rule_and_no_danger_begins_with_it(file: str, expected: bool) -> None:
    assert Policy([rule(FORBIDDEN, "a", "b"), rule(ALLOW, "/b")]).always_runs(file) is expected


def test_a_declared_program_always_runs_from_elsewhere() -> None:
    policy = Policy([rule(FORBIDDEN, "a")], [HostExecutable("a", ("/bin/a",))])
    assert [policy.always_runs(file) for file in ("/bin/a", "/x/a")] == [False, True]


def test_with_whole_paths_only_a_shell_might_be_dangerous() -> None:
    policy = Policy([rule(FORBIDDEN, "a")])
    files = ("/x/a", "/bin/rm", "/bin/bash")
    assert [policy.always_runs(file, full_path=True) for file in files] == [True, True, False]


DANGERS = [["-f"], ["-rf", "x"], ["reset"], ["-c", "rm -f x"], ["rm", "-f"], ["git", "rm"]]


@given(
    RULES,
    EXECUTABLES,
    st.sampled_from(["/bin/a", "/x/a", "/b", "/bin/cat", "/bin/rm", "rm", "/bin/git", "/x/sudo", "/bin/sh"]),
    st.one_of(st.lists(WORDS, max_size=3), st.sampled_from(DANGERS)),
    st.booleans(),
)
def test_what_always_runs_runs(
    rules: list[Rule], executables: list[HostExecutable], file: str, rest: list[str], full_path: bool
) -> None:
    policy = Policy(rules, executables)
    if policy.always_runs(file, full_path):
        assert policy.decide(file, rest, full_path).action == RUN


@given(
    RULES, EXECUTABLES, st.sampled_from(["/bin/a", "/x/a", "/b"]), st.lists(WORDS, max_size=3), st.booleans()
)
def test_the_decision_is_that_of_the_model(
    rules: list[Rule], executables: list[HostExecutable], file: str, rest: list[str], full_path: bool
) -> None:
    policy = Policy(rules, executables)
    verdict = policy.decide(file, rest, full_path)
    assert verdict.action == model(rules, executables, file, rest, full_path)
    matching = policy.matching(file, rest, full_path)
    assert (verdict.rule in matching) if matching else (verdict.rule is None)
    if matching:
        strictest = max(each.decision for each in matching)
        assert verdict.rule is next(each for each in matching if each.decision == strictest)
