"""Reads a command line exactly, by the table of options in its help text.

`Program.parse` reports the first mistake in the words of the wire contract, section 1.  It accepts no
abbreviations and guesses nothing, and a value never starts with a dash.
"""

from __future__ import annotations

from execserver.leaving import WRONG_USAGE, Leave

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NamedTuple
else:
    from execserver.tuples import NamedTuple

_CLOSING = "\nFor more information, try '--help'.\n"
_LEAVE_AT_ONCE = frozenset({"--help", "--version"})

CONFLICT = ("--listen", "--remote")
# Extensions: an option, the option that it replaces, and the options that it excludes.
INSTEAD = {"--executor-id": "--environment-id"}
_BEARER, _CREDENTIAL, _TOKEN = (
    "--registration-bearer-stdin",
    "--executor-credential-stdin",
    "--chatgpt-token-stdin",
)
_AWS, _AGENT, _ACCOUNT = "--aws-sigv4", "--use-agent-identity-auth", "--chatgpt-account-id"
# The first of each pair is the one that the text and the usage line name first.
NOT_BESIDE = {
    "--executor-id": ("--environment-id", _AGENT, _BEARER, _CREDENTIAL, _TOKEN),
    _AWS: (_BEARER, _CREDENTIAL, _TOKEN, _AGENT),
    _BEARER: (_CREDENTIAL, _TOKEN, _AGENT),
    _CREDENTIAL: (_TOKEN, _AGENT),
    _TOKEN: (_AGENT,),
}
# Option -> the options that it needs, indirect ones included.
NEEDS = {
    "--remote": ("--environment-id",),
    "--use-agent-identity-auth": ("--environment-id", "--remote"),
    "--exit-on-stdin-close": ("--environment-id", "--remote"),
    "--executor-id": ("--remote",),
    _BEARER: ("--environment-id", "--remote"),
    _CREDENTIAL: ("--environment-id", "--remote"),
    _TOKEN: ("--environment-id", "--remote"),
    _ACCOUNT: ("--remote", "--environment-id", _TOKEN),
    "--api-key-host": ("--environment-id", "--remote"),
    _AWS: ("--environment-id", "--remote"),
    "--aws-region": ("--environment-id", "--remote", _AWS),
    "--aws-profile": ("--environment-id", "--remote", _AWS),
    "--aws-service": ("--environment-id", "--remote", _AWS),
    "--remote-transport": ("--environment-id", "--remote"),
}
_DIRECT = "--remote-transport=direct"  # needs the signing that only it uses
# In this order they are named; all others before are in that of the alphabet.
_LAST_NEEDED = (_TOKEN, _AWS)


def _rank(name: str) -> tuple[int, str]:
    return (_LAST_NEEDED.index(name) + 1 if name in _LAST_NEEDED else 0, name)


class Option(NamedTuple):
    """One option: its name (`--listen`), its short form, the name of its value (None: it takes none)."""

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
    """What is wrong with a command line; `usage` is None if the reference server shows no usage line."""

    message: str
    usage: str | None = "[OPTIONS]"

    def leave(self, program: str) -> Leave:
        """Return the Leave for this mistake: all lines for stderr, and the status."""
        usage = f"\nUsage: {program} {self.usage}\n" if self.usage is not None else ""
        return Leave(WRONG_USAGE, stderr=f"error: {self.message}\n{usage}{_CLOSING}")


class _Found(Exception):
    """Carries a mistake out of the reading loop."""

    def __init__(self, mistake: Mistake) -> None:
        super().__init__(mistake.message)
        self.mistake = mistake


def read_table(
    help_text: str,
    repeatable: frozenset[str] = frozenset(),
    choices: dict[str, tuple[str, ...]] | None = None,
) -> dict[str, Option]:
    """Return the options that a help text describes, by name, in its order."""
    found = filter(None, map(_option_line, help_text.split("\n")))
    return {
        name: Option(name, short, value, name in repeatable, (choices or {}).get(name, ()))
        for short, name, value in found
    }


def _option_line(line: str) -> tuple[str | None, str, str | None] | None:
    """Return short form, name and value's name of the option that a line of a help text begins with, if any.

    Read by hand: to compile a regular expression for this takes a tenth of a start.
    """
    if not line.startswith("  -"):
        return None
    told = line[2:].partition("  ")[0]
    short = None
    if told[2:4] == ", ":
        short, told = told[:2], told[4:]
    name, _, value = told.partition(" ")
    if not name.startswith("--") or (value and not (value[0] == "<" and value[-1] == ">")):
        return None
    return short, name, value or None


class Parsed(NamedTuple):
    """A command line without mistakes.

    `words` are the options in long form with joined values (`--listen=URL`), `options` the same as a dict,
    with `""` for an option without a value.
    """

    words: list[str]
    operands: list[str]

    @property
    def options(self) -> dict[str, str]:
        """Return option -> value."""
        return dict(word.partition("=")[::2] for word in self.words)


class Program(NamedTuple):
    """The command line of one program or verb.

    `operands` are the required ones, in their order; with `takes_more` any number of further ones may follow.
    `usage` is the text behind the name in the usage line of a mistake; None shows the options in use, as the
    reference server does.
    """

    name: str
    table: dict[str, Option]
    help: Callable[[], str]
    version: str = ""
    operands: tuple[str, ...] = ()
    takes_more: bool = False
    usage: str | None = None

    def parse(self, argv: list[str]) -> Parsed:
        """Return options and operands; raise Leave for help, for the version and for the first mistake.

        `--help` and `--version` end the reading: what is behind them is ignored.
        """
        reader = _Reader(argv, self)
        try:
            parsed = reader.read()
        except _Found as found:
            raise self.mistaken(found.mistake) from None
        if "--help" in parsed.words:
            raise Leave(0, stdout=self.help())
        if "--version" in parsed.words:
            raise Leave(0, stdout=self.version)
        return parsed

    def mistaken(self, mistake: Mistake) -> Leave:
        """Return the Leave for a mistake on this command line."""
        if self.usage is not None and mistake.usage is not None:
            mistake = mistake._replace(usage=self.usage)
        return mistake.leave(self.name)


def missing(names: tuple[str, ...]) -> Mistake:
    """Return the mistake of omitting required arguments."""
    lines = "".join(f"\n  {name}" for name in names)
    return Mistake(f"the following required arguments were not provided:{lines}")


def unsigned_complaint(text: str, maximum: int) -> str | None:
    """Return what the reference server says about a value that is no number up to `maximum`."""
    digits = text.removeprefix("+")
    if not text:
        return "cannot parse integer from empty string"
    if not (digits.isascii() and digits.isdigit()):
        return "invalid digit found in string"
    # By length first: Python refuses to read thousands of digits.
    significant = digits.lstrip("0") or "0"
    if len(significant) > len(str(maximum)) or int(significant) > maximum:
        return "number too large to fit in target type"
    return None


class _Reader:
    """Reads one command line from left to right."""

    def __init__(self, argv: list[str], program: Program) -> None:
        self._rest = list(argv)
        self._program = program
        self._table = program.table
        self._shorts = {option.short: option for option in self._table.values() if option.short}
        self._seen: list[str] = []
        self._out: list[str] = []
        self._operands: list[str] = []

    def read(self) -> Parsed:
        while self._rest:
            argument = self._rest.pop(0)
            if argument == "--":
                for operand in self._rest:
                    self._take_operand(operand)
                break
            if argument.startswith("--"):
                name, equals, value = argument.partition("=")
                self._take(self._known(name), value if equals else None)
            elif argument.startswith("-") and argument != "-":
                self._take_short(argument)
            else:
                self._take_operand(argument)
            if self._out and self._out[-1] in _LEAVE_AT_ONCE:
                return Parsed(self._out, self._operands)
        self._check_companions()
        if needed := self._program.operands[len(self._operands) :]:
            raise _Found(missing(needed))
        return Parsed(self._out, self._operands)

    def _take_operand(self, argument: str) -> None:
        if len(self._operands) == len(self._program.operands) and not self._program.takes_more:
            raise _Found(Mistake(f"unexpected argument '{argument}' found"))
        self._operands.append(argument)

    def _known(self, name: str) -> Option:
        if name not in self._table:
            raise self._unexpected_option(name)
        return self._table[name]

    def _take_short(self, argument: str) -> None:
        """Take `-c VALUE`, `-cVALUE`, `-c=VALUE`, `-h`, or several as one: `-in`."""
        option = self._shorts.get(argument[:2])
        if option is None:
            raise self._unexpected_option(argument[:2])
        attached = argument[2:]
        if option.value is None and attached:
            self._take(option, None)
            if option.name not in _LEAVE_AT_ONCE:
                self._take_short(f"-{attached}")
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
        """Raise the mistake of an unknown option, which counts more than the missing value in its place."""
        if argument.startswith("--"):
            self._known(argument.partition("=")[0])
        elif argument[:2] not in self._shorts:
            raise self._unexpected_option(argument[:2])

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
        needed = sorted({need for name in self._seen for need in NEEDS.get(name, ())} - met, key=_rank)
        if _DIRECT in self._out:
            needed.append(_AWS)
        if _ACCOUNT in self._seen and not any(name in self._seen for name in needed):
            needed = list(NEEDS[_ACCOUNT])  # alone, it has an order of its own
        absent = tuple(self._table[name].shown for name in needed if name not in self._seen)
        if absent:
            given = [name for name in CONFLICT[1:] if name in self._seen and name not in needed]
            required = [*needed, *given]
            rest = [name for name in self._table if name in self._seen and name not in required]
            shown_usage = " ".join(self._table[name].shown for name in [*required, *rest])
            raise _Found(missing(absent)._replace(usage=shown_usage))

    def _check_own_companions(self) -> None:
        for name, others in NOT_BESIDE.items():
            for other in others:
                if name in self._seen and other in self._seen:
                    one, two = self._table[name].shown, self._table[other].shown
                    used = self._usage([each for each in self._seen if each != other])
                    raise _Found(Mistake(f"the argument '{one}' cannot be used with '{two}'", used))

    def _usage(self, names: list[str]) -> str:
        """Return options in the form of a usage line, in the order of the table."""
        return " ".join(option.shown for option in self._table.values() if option.name in names)
