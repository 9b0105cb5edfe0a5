"""What the verbs have in common that use a box: their command line, the box, an interrupt."""

from __future__ import annotations

import os
import re

from execserver.arguments import Mistake, Parsed, Program, read_table
from execserver.leaving import until_left

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.box.connecting import Box

_REPEATABLE = frozenset({"--env", "--exclude", "--limit", "--reverse", "--socks"})
_CHOICES: dict[str, tuple[str, ...]] = {
    "--predict": ("adaptive", "always", "never"),
    "--record": ("output", "all"),
    "--sandbox": ("read-only", "workspace-write", "danger-full-access"),
}
_INTERRUPTED = 130

_REMOTE = r"([A-Za-z0-9][A-Za-z0-9_.-]{0,62})?:(.*)"


def ended(work: Callable[[], int]) -> int:
    """Do the work of a verb and return its exit status; ^C before a command takes it ends it with 130."""
    return until_left(lambda: _interruptible(work))


def _interruptible(work: Callable[[], int]) -> int:
    try:
        return work()
    except KeyboardInterrupt:
        return _INTERRUPTED


def program(name: str, help_text: str, usage: str) -> Program:
    """Return the command line of a verb: its help text is the grammar, any number of operands."""
    table = read_table(help_text, _REPEATABLE, _CHOICES)
    return Program(f"execserver {name}", table, lambda: help_text, "", (), True, usage)


def remote(operand: str) -> re.Match[str] | None:
    """Return a path on a box: the name of the box, None for the default one, and the path there."""
    return re.fullmatch(_REMOTE, operand, re.DOTALL)  # compiled here, since `run` never asks


def too_many(found: Program, operand: str, hint: str = "") -> Exception:
    """Return the Leave for an operand that must not be there."""
    return found.mistaken(Mistake(f"unexpected argument '{operand}' found{hint}"))


def only_box(found: Program, parsed: Parsed, hint: str = "") -> str | None:
    """Return the one operand that there may be.  Raises Leave."""
    if len(parsed.operands) > 1:
        raise too_many(found, parsed.operands[1], hint)
    return parsed.operands[0] if parsed.operands else None


def box_and_name(found: Program, parsed: Parsed) -> tuple[str | None, str]:
    """Return the operands `[BOX] NAME`.  Raises Leave."""
    if not parsed.operands:
        raise found.mistaken(Mistake("a name is missing; `execserver ps` shows those there are"))
    if len(parsed.operands) > 2:
        raise too_many(found, parsed.operands[2])
    return (None if len(parsed.operands) == 1 else parsed.operands[0]), parsed.operands[-1]


def variables(found: Program, parsed: Parsed) -> dict[str, str]:
    """Return what every `--env` sets.  Raises Leave."""
    made = {}
    for word in parsed.words:
        option, _, text = word.partition("=")
        if option == "--env":
            name, equals, value = text.partition("=")
            if not name:
                raise found.mistaken(Mistake(f"invalid value '{text}' for '--env <NAME=VALUE>'"))
            if equals:
                made[name] = value
            elif name in os.environ:
                made[name] = os.environ[name]
    return made


def box_of(name: str | None, parsed: Parsed) -> Box:
    """Return the box of a name, a URL or the environment.  Raises Leave."""
    from execserver.box.connecting import find
    from execserver.verbs.program import start_command

    return find(name, parsed.options.get("--token-file"), start_command())
