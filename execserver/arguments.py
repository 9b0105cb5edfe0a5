"""Exact reading of a command line by the table of options its help text holds.

`check` names the first mistake in the words of the wire contract, section 1: no abbreviations, no guesses,
and a value never starts with a dash.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_OPTION_LINE = re.compile(r"^  (?:(-\w), )?(--[\w-]+)(?: (<[^>]+>))?(?:  .*)?$", re.MULTILINE)
_CLOSING = "\nFor more information, try '--help'.\n"
_LEAVE_AT_ONCE = frozenset({"--help", "--version"})

CONFLICT = ("--listen", "--remote")
# Own additions: an option, what it stands in for, and what it cannot stand beside.
INSTEAD = {"--executor-id": "--environment-id"}
NOT_BESIDE = {"--executor-id": ("--environment-id", "--use-agent-identity-auth")}
# Option -> what it cannot do without; an indirect need is listed too.
NEEDS = {
    "--remote": ("--environment-id",),
    "--use-agent-identity-auth": ("--environment-id", "--remote"),
    "--executor-id": ("--remote",),
}


class Option(NamedTuple):
    """One option: `--listen`, its short form, the name of its value (None: it takes none)."""

    name: str
    short: str | None
    value: str | None
    repeatable: bool
    choices: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The option as error texts show it, e.g. `--listen <URL>`."""
        return f"{self.name} {self.value}" if self.value else self.name


class Mistake(NamedTuple):
    """What is wrong with a command line; `usage` is None where the reference shows no usage line."""

    message: str
    usage: str | None = "[OPTIONS]"

    def text(self, program: str) -> str:
        """Return all lines for stderr."""
        usage = f"\nUsage: {program} {self.usage}\n" if self.usage is not None else ""
        return f"error: {self.message}\n{usage}{_CLOSING}"


class _Found(Exception):
    """Carries a mistake out of the reading loop."""

    def __init__(self, mistake: Mistake) -> None:
        super().__init__(mistake.message)
        self.mistake = mistake


def read_table(
    help_text: str, repeatable: frozenset[str], choices: dict[str, tuple[str, ...]]
) -> dict[str, Option]:
    """Return the options a help text describes, by name, in its order."""
    return {
        name: Option(name, short or None, value or None, name in repeatable, choices.get(name, ()))
        for short, name, value in _OPTION_LINE.findall(help_text)
    }


def check(argv: list[str], table: dict[str, Option]) -> list[str] | Mistake:
    """Return the arguments in long form with joined values (`--listen=URL`), or the first mistake.

    `--help` and `--version` end the reading: what stands behind them is not looked at.
    """
    reader = _Reader(argv, table)
    try:
        return reader.read()
    except _Found as found:
        return found.mistake


class _Reader:
    """Reads one command line from left to right."""

    def __init__(self, argv: list[str], table: dict[str, Option]) -> None:
        self._rest = list(argv)
        self._table = table
        self._shorts = {option.short: option for option in table.values() if option.short}
        self._seen: list[str] = []
        self._out: list[str] = []

    def read(self) -> list[str]:
        while self._rest:
            argument = self._rest.pop(0)
            if argument == "--" and self._rest:
                raise self._unexpected_operand(self._rest[0])
            if argument == "--":
                break
            if argument.startswith("--"):
                name, equals, value = argument.partition("=")
                self._take(self._known(name), value if equals else None)
            elif argument.startswith("-") and argument != "-":
                self._take_short(argument)
            else:
                raise self._unexpected_operand(argument)
            if self._out[-1] in _LEAVE_AT_ONCE:
                return self._out
        self._check_companions()
        return self._out

    def _known(self, name: str) -> Option:
        if name not in self._table:
            raise self._unexpected_option(name)
        return self._table[name]

    def _take_short(self, argument: str) -> None:
        """Take `-c VALUE`, `-cVALUE`, `-c=VALUE` or `-h`."""
        option = self._shorts.get(argument[:2])
        if option is None:
            raise self._unexpected_option(argument[:2])
        attached = argument[2:]
        if option.value is None and attached:
            self._take(option, None)
            if option.name not in _LEAVE_AT_ONCE:
                raise self._unexpected_option(f"-{attached[0]}")
        else:
            self._take(option, attached.removeprefix("=") if attached else None)

    def _take(self, option: Option, value: str | None) -> None:
        if option.value is None:
            if value is not None:
                raise _Found(
                    Mistake(
                        f"unexpected value '{value}' for '{option.name}' found; no more were expected",
                        option.name,
                    )
                )
        elif value is None:
            value = self._next_value(option)
        if option.name in self._seen and not option.repeatable:
            raise _Found(Mistake(f"the argument '{option.shown}' cannot be used multiple times"))
        if value is not None and option.choices and value not in option.choices:
            possible = f"\n  [possible values: {', '.join(option.choices)}]"
            raise _Found(Mistake(f"invalid value '{value}' for '{option.shown}'{possible}", None))
        self._seen.append(option.name)
        self._out.append(option.name if value is None else f"{option.name}={value}")

    def _next_value(self, option: Option) -> str:
        following = self._rest[0] if self._rest else None
        if following is not None and (following == "-" or not following.startswith("-")):
            return self._rest.pop(0)
        if following not in (None, "--"):
            self._complain_if_unknown(str(following))
        raise _Found(Mistake(f"a value is required for '{option.shown}' but none was supplied", None))

    def _complain_if_unknown(self, argument: str) -> None:
        """Where a value should stand, an option we do not know is the mistake that is told."""
        if argument.startswith("--"):
            self._known(argument.partition("=")[0])
        elif argument[:2] not in self._shorts:
            raise self._unexpected_option(argument[:2])

    def _unexpected_operand(self, argument: str) -> _Found:
        return _Found(Mistake(f"unexpected argument '{argument}' found"))

    def _unexpected_option(self, name: str) -> _Found:
        from difflib import get_close_matches  # late: only a mistake needs it

        message = f"unexpected argument '{name}' found"
        similar = get_close_matches(name, self._table, n=1, cutoff=0.7) if name.startswith("--") else []
        if similar:
            message += f"\n\n  tip: a similar argument exists: '{similar[0]}'"
        used = [*self._seen, *similar]
        return _Found(Mistake(message, self._usage(used) if used else "[OPTIONS]"))

    def _check_companions(self) -> None:
        if all(name in self._seen for name in CONFLICT):
            one, other = (self._table[name].shown for name in CONFLICT)
            used = self._usage([name for name in self._seen if name != CONFLICT[1]])
            raise _Found(Mistake(f"the argument '{one}' cannot be used with '{other}'", used))
        self._check_own_companions()
        met = {INSTEAD[name] for name in self._seen if name in INSTEAD}
        needed = sorted({need for name in self._seen for need in NEEDS.get(name, ())} - met)
        missing = [self._table[name].shown for name in needed if name not in self._seen]
        if missing:
            required = sorted({*needed, *(name for name in CONFLICT[1:] if name in self._seen)})
            rest = [name for name in self._table if name in self._seen and name not in required]
            lines = "".join(f"\n  {shown}" for shown in missing)
            shown_usage = " ".join(self._table[name].shown for name in [*required, *rest])
            raise _Found(Mistake(f"the following required arguments were not provided:{lines}", shown_usage))

    def _check_own_companions(self) -> None:
        for name, others in NOT_BESIDE.items():
            for other in others:
                if name in self._seen and other in self._seen:
                    one, two = self._table[name].shown, self._table[other].shown
                    used = self._usage([each for each in self._seen if each != other])
                    raise _Found(Mistake(f"the argument '{one}' cannot be used with '{two}'", used))

    def _usage(self, names: list[str]) -> str:
        """Return options as a usage line shows them, in the order of the table."""
        return " ".join(option.shown for option in self._table.values() if option.name in names)
