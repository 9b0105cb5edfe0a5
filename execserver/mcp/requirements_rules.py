"""Administrator rules: the exec rules in the machine's requirements file, a TOML file.

They can only restrict: `prompt` and `forbidden`.  Everything else in the file is ignored.  What is refused,
and in which order, is as in the reference server (0.97.0); the texts about TOML itself are our library's.
"""

from __future__ import annotations

import tomllib

from execserver.rules.policy import ALLOW, DECISIONS, Rule

REQUIREMENTS_FILE = "/etc/codex/requirements.toml"


class RequirementsError(Exception):
    """The requirements file is wrong; the text is for the user."""


class _Malformed(Exception):
    """A value has the wrong type."""


def requirement_rules(path: str, content: str) -> list[Rule]:
    """Return the rules in the text of a requirements file; an empty list without a table `[rules]`.

    Raises RequirementsError.
    """
    try:
        rules = tomllib.loads(content).get("rules")
        if rules is None:
            return []
        entries = _list(_table(rules, "rules"), "prefix_rules")
        found = [_table(entry, "a rule") for entry in entries]
        if not found:
            raise _invalid(path, "rules prefix_rules cannot be empty")
        return [_rule(path, index, entry) for index, entry in enumerate(found)]
    except (tomllib.TOMLDecodeError, _Malformed, RecursionError) as error:
        raise RequirementsError(f"Error parsing requirements file {path}: {error}") from None


def _rule(path: str, index: int, entry: dict[str, object]) -> Rule:
    def invalid(what: str) -> RequirementsError:
        return _invalid(path, f"rules prefix_rule at index {index} {what}")

    words = [_table(word, "a word of a pattern") for word in _list(entry, "pattern")]
    decision, justification = _text(entry, "decision"), _text(entry, "justification")
    if decision is not None and decision not in DECISIONS:
        known = ", ".join(f"`{each}`" for each in DECISIONS)
        raise _Malformed(f"unknown variant `{decision}`, expected one of {known}")
    if justification is not None and not justification.strip():
        raise invalid("has an empty justification")
    if not words:
        raise invalid("has an empty pattern")
    pattern = []
    for place, word in enumerate(words):
        choices, wrong = _choices(word)
        if wrong:
            raise invalid(f"has an invalid pattern token at index {place}: {wrong}")
        pattern.append(choices)
    if decision is None:
        raise invalid("is missing a decision")
    if decision == DECISIONS[ALLOW]:
        raise invalid(
            "has decision 'allow', which is not permitted in requirements.toml (use 'prompt' or 'forbidden')"
        )
    where = f"{path}:prefix_rules[{index}]"
    return Rule(tuple(pattern), DECISIONS.index(decision), where, justification)


def _choices(word: dict[str, object]) -> tuple[tuple[str, ...], str]:
    """Return the alternatives of one word, and what is wrong with it (empty if nothing is)."""
    token = _text(word, "token")
    if token is not None and "any_of" in word:
        return (), "set either token or any_of, not both"
    if token is not None:
        return (token,), "" if token.strip() else "token cannot be empty"
    if "any_of" not in word:
        return (), "set either token or any_of"
    choices = []
    for choice in _list(word, "any_of"):
        if not isinstance(choice, str):
            raise _Malformed("`any_of` has to be a list of strings")
        choices.append(choice)
    if not choices:
        return (), "any_of cannot be empty"
    return tuple(choices), "" if all(map(str.strip, choices)) else "any_of cannot include empty tokens"


def _invalid(path: str, what: str) -> RequirementsError:
    return RequirementsError(f"invalid rules in requirements (set by {path}): {what}")


def _table(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _Malformed(f"{name} has to be a table")
    return value


def _list(table: dict[str, object], key: str) -> list[object]:
    if key not in table:
        raise _Malformed(f"missing field `{key}`")
    value = table[key]
    if not isinstance(value, list):
        raise _Malformed(f"`{key}` has to be a list")
    return value


def _text(table: dict[str, object], key: str) -> str | None:
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise _Malformed(f"`{key}` has to be a string")
    return value
