"""The file of `--network-rules`: what commands may reach, as the machine's owner says it.

    allow  = ["https://index.example.org", "*.example.net:80,443", "git.example.com:22"]
    deny   = ["tracker.example.com"]
    review = ["**.github.com"]

    [label.ci]
    allow = ["https://registry.example.com"]

A rule is `[PROTOCOL://]HOST[:PORTS]`.  The host is a pattern, the ports are numbers and ranges with commas
between them; `http` and `https` mean their own port unless others are named.  Without protocol and ports a
rule means all.  What is in `review` needs a person's yes, what is in no list is refused.  The rules of a
label are for the clients whose token was issued with it, and come to those above.
"""

from __future__ import annotations

import re
import tomllib

from execserver.egress.machine_rules import OWN_PORTS, WORDS, MachineRules
from execserver.egress.patterns import ConfigError, Pattern, denying
from execserver.egress.policy import Rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_LISTS = ("allow", "deny", "review")
_LABEL = "label"
_RULE = re.compile(r"(?:([a-z0-9-]+)://)?(\[[^\]]*\]|[^:\[\]]*)(?::(.*))?", re.DOTALL)
_PORTS = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_PLACE = re.compile(r"\(at line (\d+), column \d+\)$")
_HIGHEST_PORT = 65535
MAX_RULES = 10_000

_RULE_CURE = (
    "write [PROTOCOL://]HOST[:PORTS], such as https://index.example.org or *.example.com:80,8000-8100"
)
_LIST_CURE = f"the lists are {', '.join(_LISTS)}, in the file itself and in [label.NAME]"
_TEXTS_CURE = 'write a list of texts, such as allow = ["https://index.example.org"]'


class RulesFileError(Exception):
    """The file cannot be understood, at this `line` if that is known; `cure` is what to do."""

    def __init__(self, text: str, cure: str, line: int = 0) -> None:
        super().__init__(text)
        self.cure = cure
        self.line = line


class _Wrong(Exception):
    """What is wrong, the remedy, the words of the file that it is about, and below which label they are."""

    def __init__(self, text: str, cure: str, about: str = "") -> None:
        super().__init__(text)
        self.cure = cure
        self.about = about
        self.label = ""


class NetworkRules:
    """A whole file."""

    __slots__ = ("_labels", "_others")

    def __init__(self, others: MachineRules, labels: Mapping[str, MachineRules]) -> None:
        self._others = others
        self._labels = labels

    def of(self, label: str | None) -> MachineRules:
        """Return the rules for clients with a label; those for all where the file does not name it.

        Where nobody can tell the label (None), nothing is allowed.
        """
        return MachineRules(()) if label is None else self._labels.get(label, self._others)


def parse_rules(text: str) -> NetworkRules:
    """Return the rules of a file's text.  Raises RulesFileError."""
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        found = _PLACE.search(str(error))
        line = int(found[1]) if found else text.rstrip().count("\n") + 1
        raise RulesFileError(str(error), _TEXTS_CURE, line) from None
    try:
        return _rules_of(table)
    except _Wrong as wrong:
        raise RulesFileError(str(wrong), wrong.cure, _line_of(wrong, text)) from None


def _line_of(wrong: _Wrong, text: str) -> int:
    """Return the first line that may be meant, 0 if there is none: an escape may spell words otherwise."""
    numbered = enumerate(text.split("\n"), 1)
    lines = [(number, line) for number, line in numbered if not line.lstrip().startswith("#")]
    heads = [number for number, line in lines if f"[{_LABEL}." in line and wrong.label in line]
    first = heads[0] if wrong.label and heads else 1
    named = (number for number, line in lines if number >= first and wrong.about in line)
    return next(named, 0) if wrong.about else 0


def _rules_of(table: Mapping[str, object]) -> NetworkRules:
    _check_names(table, (*_LISTS, _LABEL))
    labels = table.get(_LABEL, {})
    if not isinstance(labels, dict):
        raise _Wrong(f"{_LABEL} is no table", "write [label.NAME] above its lists", _LABEL)
    common = _lists(table)
    own = {}
    for name, content in labels.items():
        if not isinstance(content, dict):
            raise _Wrong(f"{_LABEL}.{name} is no table", f"write [label.{name}]", name)
        try:
            _check_names(content, _LISTS)
            further = _lists(content)
        except _Wrong as wrong:
            wrong.label = name
            raise
        own[name] = [[*common[kind], *further[kind]] for kind in range(len(_LISTS))]
    if sum(map(len, common)) + sum(len(rules) for lists in own.values() for rules in lists) > MAX_RULES:
        raise _Wrong(f"more than {MAX_RULES} rules", "use patterns, such as *.example.com")
    return NetworkRules(MachineRules(*common), {name: MachineRules(*lists) for name, lists in own.items()})


def _check_names(table: Mapping[str, object], known: tuple[str, ...]) -> None:
    for name in table:
        if name not in known:
            raise _Wrong(f"unknown name {name}", _LIST_CURE, name)


def _lists(table: Mapping[str, object]) -> list[list[Rule]]:
    return [_rules(table.get(name, []), name, denying if name == "deny" else Pattern) for name in _LISTS]


def _rules(value: object, name: str, pattern_of: Callable[[str], Pattern]) -> list[Rule]:
    if not isinstance(value, list):
        raise _Wrong(f"{name} is no list", _TEXTS_CURE, name)
    rules = []
    for text in value:
        if not isinstance(text, str):
            raise _Wrong(f"{name} has something that is no text", _TEXTS_CURE, name)
        rules.append(_rule(text, pattern_of))
    return rules


def _rule(text: str, pattern_of: Callable[[str], Pattern]) -> Rule:
    found = _RULE.fullmatch(text)
    if found is None:
        raise _Wrong(f"no rule: {text}", _RULE_CURE, text)
    word, host, ports = found.groups()
    if word is not None and word not in WORDS:
        raise _Wrong(f"unknown protocol {word}", f"the protocols are {', '.join(WORDS)}", text)
    try:
        pattern = pattern_of(host)
    except ConfigError as error:
        raise _Wrong(f"{error}: {text}" if text not in str(error) else str(error), _RULE_CURE, text) from None
    if word is None:
        return Rule(pattern, _ports(ports, text))
    protocol = WORDS[word]
    own = OWN_PORTS.get(protocol)
    given = _ports(ports, text) if ports is not None or own is None else ((own, own),)
    return Rule(pattern, given, frozenset({protocol}))


def _ports(text: str | None, rule: str) -> tuple[tuple[int, int], ...]:
    if text is None:
        return ()
    pairs = []
    for part in text.split(","):
        found = _PORTS.fullmatch(part.strip())
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 0 < low <= high <= _HIGHEST_PORT:
            raise _Wrong(f"no port or range of ports: {part.strip() or rule}", _RULE_CURE, rule)
        pairs.append((low, high))
    return tuple(pairs)
