"""The command lines of verbs: of one that the program's help text describes, and of one with actions."""

from __future__ import annotations

from execserver.arguments import Mistake, Program, read_table
from execserver.leaving import Leave

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Action = Callable[[list[str]], int]


def verb(usage: str, *flags: str, operands: tuple[str, ...] = ()) -> Program:
    """Return the command line of a verb: flags, which are optional, and operands, which are required.

    `usage` begins with the verb.
    """
    table = read_table("".join(f"  {line}\n" for line in (*flags, "-h, --help")))
    return Program("execserver", table, _help, operands=operands, usage=usage)


def carry_out(
    name: str, given: list[str], actions: Mapping[str, Action], help_text: str, operands: str = ""
) -> int:
    """Return what the action that the first argument names makes of the others; `name` is the verb's.

    `operands` is what the usage line shows behind the actions.  Raises Leave.
    """
    action = given[0] if given else ""
    if action in ("-h", "--help"):
        raise Leave(0, stdout=help_text)
    if action not in actions:
        message = f"unexpected argument '{action}' found" if action else "an action is missing"
        shown = "|".join(actions)
        raise Mistake(message, (f"<{shown}>" if len(actions) > 1 else shown) + operands).leave(name)
    return actions[action](given[1:])


def _help() -> str:
    from execserver.cli_help import HELP  # late: neither a mistake nor the work itself needs the server's

    return HELP
