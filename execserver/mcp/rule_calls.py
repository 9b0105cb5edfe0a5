"""What the calls in a rules file mean: checks their arguments, makes rules of them and tries their examples.

The texts of a Refusal are those of the shell tool contract, those of `host_executable` from the releases
after it.  An argument comes as the language sees it: a text, a list, or for anything else an `Other` that
names its type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from execserver.mcp.quoting import quote
from execserver.mcp.shell_words import BadShellSyntax, split_words
from execserver.rules.policy import DECISIONS, HostExecutable, Rule


class Other(NamedTuple):
    """A value that is neither a text nor a list; `type` is Starlark's name of its type."""

    type: str


Argument: TypeAlias = "str | list[Argument] | Other"

_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\t": "\\t", "\n": "\\n", "\r": "\\r"})


class Refusal(Exception):
    """A call is wrong; the text says how, and the caller knows its place in the file."""


class PrefixRule(NamedTuple):
    """The arguments of `prefix_rule` in their order; `justification` is None if it was not given."""

    pattern: list[Argument]
    decision: str
    match: list[Argument]
    not_match: list[Argument]
    justification: str | None


def prefix_rule(call: PrefixRule, where: str) -> Rule:
    """Return the rule that a call declares; `where` is `file:line` of the call.  Raises Refusal."""
    if call.decision not in DECISIONS:
        raise Refusal(f"invalid decision: {call.decision}")
    if call.justification is not None and not call.justification.strip():
        raise Refusal("invalid rule: justification cannot be empty")
    pattern = tuple(_choices(element) for element in call.pattern)
    if not pattern:
        raise _bad_pattern("pattern cannot be empty")
    rule = Rule(pattern, DECISIONS.index(call.decision), where, call.justification)
    matching = [_example(example) for example in call.match]
    other = [_example(example) for example in call.not_match]
    _try_examples(rule, matching, other)
    return rule


def host_executable(name: str, paths: list[Argument]) -> HostExecutable:
    """Return the declaration of the files that a program name stands for.  Raises Refusal."""
    if not name:
        raise Refusal("invalid rule: host_executable name cannot be empty")
    if "/" in name or name in (".", ".."):
        raise Refusal(f"invalid rule: host_executable name must be a bare executable name (got {name})")
    return HostExecutable(name, tuple(dict.fromkeys(_host_path(name, path) for path in paths)))


def shown(rule: Rule) -> str:
    """Return a rule's pattern as a rules file spells it."""
    elements = [
        _quoted(choices[0]) if len(choices) == 1 else f"[{', '.join(map(_quoted, choices))}]"
        for choices in rule.pattern
    ]
    return f"prefix_rule([{', '.join(elements)}])"


def _host_path(name: str, path: Argument) -> str:
    if not isinstance(path, str):
        raise Refusal(f"invalid rule: host_executable paths must be strings (got {_type_of(path)})")
    if not path.startswith("/"):
        raise Refusal(f"invalid rule: host_executable paths must be absolute (got {path})")
    if path.rpartition("/")[2] != name:
        raise Refusal(f"invalid rule: host_executable path `{path}` must have basename `{name}`")
    return path


def _choices(element: Argument) -> tuple[str, ...]:
    """Return the alternatives of one word of a pattern."""
    if isinstance(element, str):
        return (element,)
    if not isinstance(element, list):
        raise _bad_pattern(f"pattern element must be a string or list of strings (got {_type_of(element)})")
    if not element:
        raise _bad_pattern("pattern alternatives cannot be empty")
    return tuple(_only_texts(element, "invalid pattern element: pattern alternative must be a string"))


def _bad_pattern(what: str) -> Refusal:
    return Refusal(f"invalid pattern element: {what}")


def _example(example: Argument) -> list[str]:
    """Return the words of one example."""
    if isinstance(example, str):
        try:
            words = split_words(example)
        except BadShellSyntax:
            raise Refusal("invalid example: example string has invalid shell syntax") from None
        if not words:
            raise Refusal("invalid example: example cannot be an empty string")
        return words
    if not isinstance(example, list):
        raise Refusal(
            f"invalid example: example must be a string or list of strings (got {_type_of(example)})"
        )
    if not example:
        raise Refusal("invalid example: example cannot be an empty list")
    return list(_only_texts(example, "invalid example: example tokens must be strings"))


def _only_texts(values: Iterable[Argument], otherwise: str) -> Iterator[str]:
    for value in values:
        if not isinstance(value, str):
            raise Refusal(f"{otherwise} (got {_type_of(value)})")
        yield value


def _type_of(value: Argument) -> str:
    return value.type if isinstance(value, Other) else "list" if isinstance(value, list) else "string"


def _try_examples(rule: Rule, matching: list[list[str]], other: list[list[str]]) -> None:
    for words in other:
        if rule.matches(words):
            raise Refusal(f"expected example to not match rule `{shown(rule)}`: {_line(words)}")
    unmatched = [_line(words) for words in matching if not rule.matches(words)]
    if unmatched:
        raise Refusal(
            f"expected every example to match at least one rule. rules: [{shown(rule)}]; "
            f"unmatched examples: [{', '.join(map(_quoted, unmatched))}]"
        )


def _line(words: list[str]) -> str:
    return " ".join(map(quote, words))


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPED)}"'
