"""The few arguments of a verb, with the error texts of the command line (wire contract, section 1)."""

from __future__ import annotations

import sys

from execserver.arguments import Mistake

_USAGE_STATUS = 2


class Leave(Exception):
    """The arguments decide the outcome: the text was printed, `status` is left to return."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def operands(verb: str, names: tuple[str, ...]) -> list[str]:
    """Return what stands behind a verb on the command line, one text per name.

    Prints and raises Leave for `--help` and for every mistake.
    """
    given: list[str] = []
    options_end = False
    for argument in sys.argv[1:]:
        if not options_end and argument in ("-h", "--help"):
            raise _help()
        if not options_end and argument == "--":
            options_end = True
        elif len(given) == len(names) or (not options_end and argument.startswith("-") and argument != "-"):
            raise _mistake(verb, names, f"unexpected argument '{argument}' found")
        else:
            given.append(argument)
    if len(given) < len(names):
        missing = "".join(f"\n  {name}" for name in names[len(given) :])
        raise _mistake(verb, names, f"the following required arguments were not provided:{missing}")
    return given


def flags(verb: str, known: tuple[str, ...]) -> frozenset[str]:
    """Return the flags that stand behind a verb on the command line; all are optional.

    Prints and raises Leave for `--help` and for every mistake.
    """
    given = sys.argv[1:]
    if "-h" in given or "--help" in given:
        raise _help()
    for argument in given:
        if argument not in known:
            raise _mistake(
                verb, tuple(f"[{flag}]" for flag in known), f"unexpected argument '{argument}' found"
            )
    return frozenset(given)


def _help() -> Leave:
    from execserver.cli import HELP

    sys.stdout.write(HELP)
    return Leave(0)


def _mistake(verb: str, names: tuple[str, ...], message: str) -> Leave:
    sys.stderr.write(Mistake(message, " ".join((verb, *names))).text("execserver"))
    return Leave(_USAGE_STATUS)
