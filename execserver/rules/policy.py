"""The exec rules of the shell tool as plain data, and the decision for one exec.

A rule is a prefix of a command: its first words, with alternatives for each, and what happens to a program
that is started so.  All rules that match count, and the strictest of them decides.  If none matches, the
program runs inside the sandbox, after an approval prompt if it might be dangerous (shell tool contract).
Nothing here does I/O, and all values are immutable.

Limits: a decision examines the rules filed under the program's path and under its name, the strictest first,
and no more words of the command than a rule has.  The check for dangerous programs reads the words once, and
a script of at most `dangerous.SCRIPT_CHARACTERS`.
"""

from __future__ import annotations

from execserver.rules.dangerous import is_never_dangerous, might_be_dangerous

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    _Pattern = tuple[tuple[str, ...], ...]
    _Filed = tuple[int, _Pattern, "Verdict"]  # rank (the lowest decides), pattern, verdict

# The decisions of rules; a larger one is stricter.
ALLOW, PROMPT, FORBIDDEN = range(3)
DECISIONS = ("allow", "prompt", "forbidden")  # as rules files spell them

# What to do with one exec.
RUN = 0  # inside the sandbox, as if it had not been intercepted
ESCALATE = 1  # outside the sandbox
DENY = 2  # not at all
ASK_TO_ESCALATE = 3  # outside the sandbox, if the user approves
ASK_TO_RUN = 4  # inside the sandbox, if the user approves

FORBIDDEN_REASON = "Execution forbidden by policy"

_ACTIONS = (ESCALATE, ASK_TO_ESCALATE, DENY)  # by decision


class _Value:
    """An immutable value, compared and printed by its fields."""

    __slots__: tuple[str, ...] = ()

    def _key(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, _Value) and other._key() == self._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


class Rule(_Value):
    """One `prefix_rule`: the alternatives for each of a command's first words, and the decision.

    Neither the pattern nor one of its words is empty (an alternative may be the empty text).  `where` is
    `file:line` of the call that made it.
    """

    __slots__ = ("decision", "justification", "pattern", "where")

    def __init__(
        self,
        pattern: _Pattern,
        decision: int,
        where: str,
        justification: str | None = None,
    ) -> None:
        self.pattern = pattern
        self.decision = decision
        self.where = where
        self.justification = justification

    def matches(self, words: Sequence[str]) -> bool:
        """Return whether a command (program first) begins with the pattern."""
        if len(words) < len(self.pattern):
            return False
        return all(word in choices for word, choices in zip(words, self.pattern, strict=False))


class HostExecutable(_Value):
    """The files that a program's bare name stands for; rules by that name match no other file."""

    __slots__ = ("name", "paths")

    def __init__(self, name: str, paths: tuple[str, ...]) -> None:
        self.name = name
        self.paths = paths


class Verdict(_Value):
    """What to do with one exec, and the rule that decided (None: no rule matched)."""

    __slots__ = ("action", "rule")

    def __init__(self, action: int, rule: Rule | None = None) -> None:
        self.action = action
        self.rule = rule


class Policy(_Value):
    """All rules, in the order of their files and lines, and the files of declared programs.

    If a program is declared more than once, the last declaration counts.
    """

    __slots__ = ("_by_first", "_paths", "executables", "rules")

    def __init__(self, rules: Sequence[Rule] = (), executables: Sequence[HostExecutable] = ()) -> None:
        self.rules = tuple(rules)
        self.executables = tuple(executables)
        self._paths = {each.name: frozenset(each.paths) for each in self.executables}
        self._by_first: dict[str, list[_Filed]] = {}
        # Sorting is stable: among the strictest, the first of the first file decides.
        for rank, rule in enumerate(sorted(self.rules, key=lambda rule: -rule.decision)):
            filed = (rank, rule.pattern, Verdict(_ACTIONS[rule.decision], rule))
            for first in dict.fromkeys(rule.pattern[0]):
                self._by_first.setdefault(first, []).append(filed)

    def _key(self) -> tuple[object, ...]:
        return self.rules, self.executables

    def __repr__(self) -> str:
        return f"Policy(rules={self.rules!r}, executables={self.executables!r})"

    def decide(self, file: str, arguments: Sequence[str], full_path: bool = False) -> Verdict:
        """Return what to do with `file`, an absolute path, started with `arguments` after argv[0].

        The first word of a pattern matches the whole path or the file's name; with `full_path` only the
        whole path.
        """
        found: _Filed | None = None
        for first in self._names(file, full_path):
            for filed in self._by_first.get(first, ()):
                if _continues(filed[1], arguments):
                    if found is None or filed[0] < found[0]:
                        found = filed
                    break  # those behind it have a higher rank
        if found is not None:
            return found[2]
        words = [_program(file, full_path), *arguments]
        return _ASK_TO_RUN if might_be_dangerous(words) else _RUN

    def always_runs(self, file: str, full_path: bool = False) -> bool:
        """Return whether `decide` says RUN of a file whatever its arguments are; False may be wrong."""
        if any(name in self._by_first for name in self._names(file, full_path)):
            return False
        return is_never_dangerous(_program(file, full_path))

    def matching(self, file: str, arguments: Sequence[str], full_path: bool = False) -> list[Rule]:
        """Return every rule that matches, in the order of their files and lines."""
        names = self._names(file, full_path)
        return [rule for rule in self.rules if any(rule.matches([name, *arguments]) for name in names)]

    def _names(self, file: str, full_path: bool) -> tuple[str, ...]:
        """Return the first words of patterns that match a file."""
        name = file.rpartition("/")[2]
        if full_path or name == file:
            return (file,)
        paths = self._paths.get(name)
        return (file, name) if paths is None or file in paths else (file,)


def _program(file: str, full_path: bool) -> str:
    """Return the word that stands for a file where no rule does."""
    return file if full_path else file.rpartition("/")[2]


def _continues(pattern: _Pattern, arguments: Sequence[str]) -> bool:
    """Return whether the arguments match the pattern behind its first word."""
    if len(arguments) < len(pattern) - 1:
        return False
    return all(argument in choices for argument, choices in zip(arguments, pattern[1:], strict=False))


_RUN = Verdict(RUN)
_ASK_TO_RUN = Verdict(ASK_TO_RUN)
